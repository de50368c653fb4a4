"""Decide the next step: integers in, a `StepPlan` out. Never imports torch."""
