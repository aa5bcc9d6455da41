"""What speculative decoding can bring on a machine: the roofline of a model, and the tree size that pays most."""
