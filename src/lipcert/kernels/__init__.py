"""Pure tensor maths: no Module, no state."""
