"""What makes a width exact: proofs from the graph, probes on this machine, and the choice of kernels."""
