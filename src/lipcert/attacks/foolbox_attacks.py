"""Attacks of foolbox on the same balls: l2 DeepFool, DDN, Carlini-Wagner and PGD.

foolbox sees the balls' own coordinates: every image is the origin, every certificate has radius 1. So its one
epsilon per batch fits all images, its absolute step sizes mean the same for each, and Carlini-Wagner's change
of variables loses no digits at the image.
"""

import warnings
from collections.abc import Iterator
from types import ModuleType

import torch
from torch import Tensor, nn

from lipcert.attacks.balls import Balls
from lipcert.attacks.settings import AttackSettings
from lipcert.errors import ArgumentError

BOUND = 16.0
"""Half side of the cube that foolbox searches, in radii; foolbox needs bounds."""


def import_foolbox() -> ModuleType:
    """Import foolbox.

    Raises:
        ArgumentError: it is not installed.
    """
    try:
        with warnings.catch_warnings():
            # foolbox 3.3.4 imports a name from a place that scipy has deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            import foolbox
    except ImportError as error:
        raise ArgumentError(
            f"attacks: foolbox cannot be imported ({error}); run pip install foolbox (lipcert's "
            "extra audit), or choose among the attacks noise, pgd and pgd-minimal"
        ) from error
    module: ModuleType = foolbox
    return module


def deepfool(balls: Balls, settings: AttackSettings, generator: torch.Generator) -> Iterator[Tensor]:
    """DeepFool (Moosavi-Dezfooli et al. 2016): project onto the linearised boundary, again and again."""
    attacks = import_foolbox().attacks
    candidates = 1 + max(settings.targets, 9)
    attack = attacks.L2DeepFoolAttack(steps=settings.steps, candidates=candidates, overshoot=0.002)
    yield _run(attack, balls, generator)


def ddn(balls: Balls, settings: AttackSettings, generator: torch.Generator) -> Iterator[Tensor]:
    """DDN (Rony et al. 2019): direction and norm are learnt apart."""
    attacks = import_foolbox().attacks
    yield _run(attacks.DDNAttack(steps=2 * settings.steps, init_epsilon=1.0), balls, generator)


def carlini_wagner(balls: Balls, settings: AttackSettings, generator: torch.Generator) -> Iterator[Tensor]:
    """Carlini-Wagner (2017): penalised norm, by Adam, with a search for the penalty.

    The penalty starts where squared norm and lead weigh the same at the edge of the ball.
    """
    attacks = import_foolbox().attacks
    with torch.no_grad():
        lead = balls.lead(balls.logits(torch.zeros_like(balls.images, dtype=torch.float32)))
    attack = attacks.L2CarliniWagnerAttack(
        binary_search_steps=5,
        steps=2 * settings.steps,
        stepsize=0.05 / BOUND,
        initial_const=1 / max(float(lead.median()), 1e-12),
        abort_early=True,
    )
    yield _run(attack, balls, generator)


def pgd(balls: Balls, settings: AttackSettings, generator: torch.Generator) -> Iterator[Tensor]:
    """PGD (Madry et al. 2018) on the cross entropy, at `settings.inside` of the radius."""
    attacks = import_foolbox().attacks
    attack = attacks.L2ProjectedGradientDescentAttack(steps=settings.steps, rel_stepsize=4 / settings.steps)
    yield _run(attack, balls, generator, epsilon=settings.inside)


class _UnitBalls(nn.Module):
    """The surrogate in the coordinates of the balls, row by row; a batch must hold all of them in order."""

    def __init__(self, balls: Balls) -> None:
        super().__init__()
        self.balls = balls

    def forward(self, z: Tensor) -> Tensor:
        return self.balls.logits(z)


def _run(attack: object, balls: Balls, generator: torch.Generator, epsilon: float | None = None) -> Tensor:
    foolbox = import_foolbox()
    device = balls.images.device
    target = foolbox.PyTorchModel(_UnitBalls(balls).eval(), bounds=(-BOUND, BOUND), device=device)
    criterion = foolbox.criteria.Misclassification(balls.prediction)
    origin = torch.zeros_like(balls.images, dtype=torch.float32)
    arguments = {} if epsilon is None else {"epsilon": epsilon}
    # foolbox draws from torch's global stream: seed it for the attack and leave it as it was.
    with torch.enable_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator, device="cpu")))
        found: Tensor = attack.run(target, origin, criterion, **arguments)  # type: ignore[attr-defined]
    return found.detach().nan_to_num(0.0, 0.0, 0.0)
