"""What `RobustClassifier(verbose=True)` prints."""

from lipcert.training.progress import PlainLines


class FitLines(PlainLines):
    """Lines of a run that holds nothing out: what is evaluated are training samples, and the line says so."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def evaluated(self, *, epoch: float, loss: float, standard: float, certified: float) -> None:
        """Print a line."""
        self.say(
            f"epoch {epoch:g}  loss {loss:.4f}  on {self.count} of the training samples: {standard:.2%} "
            f"right, {certified:.2%} certified at 36/255 (estimate)"
        )
