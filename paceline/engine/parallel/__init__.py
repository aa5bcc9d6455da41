"""Several processes, each with a copy of the model, compute one step's draft tree together."""
