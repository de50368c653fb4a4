"""Turn the crank: loop, batch, runner, client. Empty so that the client needs no torch."""
