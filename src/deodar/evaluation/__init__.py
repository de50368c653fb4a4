"""What a checkpoint can do: the tasks and tables of `deodar eval`."""
