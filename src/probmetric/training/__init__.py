"""Training: one loop for every loss and encoder, resumable to the bit, and the step that runs it on folders."""
