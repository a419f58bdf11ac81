"""Generation for the routes: chat formats, sampling fields, answer streams, log probabilities and usage."""
