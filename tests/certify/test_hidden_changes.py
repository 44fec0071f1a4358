"""What a walk over the modules does not see is refused: a certificate would speak of another network."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import lipcert as lc
from lipcert.attacks.classifier import certified_classifier
from lipcert.certify import exact, layer_bounds
from lipcert.certify.exact import fingerprint
from lipcert.errors import ArgumentError, NotProvedError
from lipcert.functional.series import SERIES
from lipcert.functional.skew_norms import start_vector
from lipcert.nn import ConstantHead, Flatten, LipschitzModule
from lipcert.nn.activations import Activation
from lipcert.nn.frozen_circular import CircularConv2d, FrozenLinear
from lipcert.nn.frozen_skew import FrozenSeries
from lipcert.nn.walk import split_head

IMAGES = torch.rand(16, 4, 1, 1, generator=torch.Generator().manual_seed(0))


def head() -> ConstantHead:
    return ConstantHead(torch.eye(4), None)


def turn() -> FrozenLinear:
    return FrozenLinear(torch.linalg.qr(torch.randn(4, 4)).Q, torch.randn(4))


def test_a_module_that_stands_in_two_places_counts_twice() -> None:
    act = lc.MaxMin()
    shared = nn.Sequential(Flatten(), turn(), act, turn(), act, head())
    once = nn.Sequential(Flatten(), shared[1], act, shared[3], head())
    assert torch.equal(lc.certify(shared, IMAGES).prediction, shared(IMAGES).argmax(1))
    assert not torch.equal(shared(IMAGES).argmax(1), once(IMAGES).argmax(1)), "the test sees no difference"
    assert torch.allclose(lc.freeze(shared, (4, 1, 1))(IMAGES), shared(IMAGES))
    assert fingerprint(shared) != fingerprint(nn.Sequential(OrderedDict(list(shared.named_children()))))


def test_its_bound_counts_twice() -> None:
    triple = FrozenLinear(3 * torch.eye(4), None)
    model = nn.Sequential(Flatten(), triple, triple, head())
    assert lc.lipschitz_upper_bound(model, (4, 1, 1)) == pytest.approx(9)
    assert lc.certify(model, IMAGES).lipschitz == pytest.approx(9)


def test_a_head_that_also_stands_further_up() -> None:
    last = ConstantHead(2 * torch.eye(4), None)
    model = nn.Sequential(Flatten(), last, turn(), last)
    body, found = split_head(model)
    assert found is last
    assert list(body) == list(model)[:3]


class Amplifier(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(x)


class Cosine(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.normalize(x, dim=1))


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module((x - 0.5).sign())


class Louder(lc.MaxMin):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(x)


class Louder2(lc.OrthogonalLinear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(x)

    def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
        return 10 * super().lipschitz_bound(input_shape)


class Louder3(lc.SOC):
    def transform(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * super().transform(x)


class Louder4(lc.MaxMin):
    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * super().activate(x)


class Cubed(ConstantHead):
    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return super().logits(x) ** 3


class Wide(ConstantHead):
    """States everything but how far its rows are apart."""

    freeze = LipschitzModule.freeze

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().logits(x)

    def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
        return 2.0


def hooked(register: str, place: Callable[[nn.Sequential], nn.Module]) -> nn.Sequential:
    model = nn.Sequential(
        Flatten(), nn.Sequential(lc.OrthogonalLinear(4, 4), lc.MaxMin()), lc.OrthogonalHead(4, 4)
    )
    getattr(place(model), register)(lambda *_: None)
    return model


def own_forward() -> nn.Sequential:
    model = nn.Sequential(Flatten(), lc.MaxMin(), head())
    model[1].forward = lambda x: 10 * x  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: nn.Sequential(Flatten(), Amplifier(turn()), head()),
            "1: Amplifier is an nn.Sequential with a",
        ),
        (
            lambda: nn.Sequential(Flatten(), Cosine(4, 4)),
            "1: Cosine is an nn.Linear with a forward of its own",
        ),
        (
            lambda: Wrapper(nn.Sequential(Flatten(), head())),
            "model: expected an nn.Sequential .* got Wrapper",
        ),
        (
            lambda: nn.Sequential(Flatten(), Louder(), head()),
            "1: Louder has a forward .* inherits lipschitz_bound",
        ),
        (
            lambda: nn.Sequential(Flatten(), Louder2(4, 4), head()),
            "1: Louder2 has a forward .* inherits freeze",
        ),
        (
            lambda: nn.Sequential(Louder3(4, 4, 1), Flatten(), head()),
            "0: Louder3 .* inherits lipschitz_bound",
        ),
        (lambda: nn.Sequential(Flatten(), Louder4(), head()), "1: Louder4 .* inherits lipschitz_bound"),
        (lambda: nn.Sequential(Flatten(), Cubed(torch.eye(4), None)), "1: Cubed .* inherits lipschitz_bound"),
        (
            lambda: nn.Sequential(Flatten(), Wide(torch.eye(4), None)),
            "1: Wide .* inherits pair_distance_bounds",
        ),
        (lambda: hooked("register_forward_hook", lambda m: m[1][1]), r"1\.1: MaxMin has a forward hook"),
        (
            lambda: hooked("register_forward_pre_hook", lambda m: m[1][0]),
            r"1\.0: OrthogonalLinear has a forward",
        ),
        (lambda: hooked("register_forward_hook", lambda m: m[1]), "1: Sequential has a forward hook"),
        (lambda: hooked("register_forward_hook", lambda m: m), "model: Sequential has a forward hook"),
        (
            lambda: hooked("register_forward_hook", lambda m: m[2].linear),
            r"2\.linear: OrthogonalLinear has a",
        ),
        (own_forward, "1: MaxMin was given another forward"),
    ],
)
def test_what_no_bound_sees_is_refused(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(NotProvedError, match=message):
        lc.certify(build(), IMAGES)


@pytest.mark.parametrize("register", ["register_module_forward_hook", "register_module_forward_pre_hook"])
def test_a_hook_for_all_modules_is_refused(register: str) -> None:
    model = nn.Sequential(Flatten(), lc.MaxMin(), head())
    hook = getattr(nn.modules.module, register)(lambda *_: None)
    try:
        with pytest.raises(NotProvedError, match="model: torch runs a forward hook for every module"):
            lc.certify(model, IMAGES)
    finally:
        hook.remove()
    with FlopCounterMode(display=False):  # hooks of torch that only watch
        assert lc.certify(model, IMAGES).radius.isfinite().all()


def test_a_hook_that_comes_after_the_first_certificate_is_refused_too() -> None:
    model = nn.Sequential(Flatten(), lc.MaxMin(), head())
    lc.certify(model, IMAGES)
    model[1].register_forward_hook(lambda module, inputs, output: 10 * output)
    for function in (lc.certify, lambda m, _: lc.freeze(m, (4, 1, 1))):
        with pytest.raises(NotProvedError, match="1: MaxMin has a forward hook"):
            function(model, IMAGES)


def test_wrappers_of_torch_are_looked_through() -> None:
    model = nn.Sequential(Flatten(), lc.MaxMin(), head())
    wrapped = torch.optim.swa_utils.AveragedModel(model)
    assert torch.equal(lc.certify(wrapped, IMAGES).radius, lc.certify(model, IMAGES).radius)
    wrapped.register_forward_pre_hook(lambda module, inputs: ((inputs[0] - 0.5).sign(),))
    with pytest.raises(NotProvedError, match="model: AveragedModel has a forward hook"):
        lc.certify(wrapped, IMAGES)


def test_a_forward_that_is_the_modules_own_is_no_change() -> None:
    """As lightning-fabric leaves it behind after a step."""
    model = nn.Sequential(Flatten(), lc.MaxMin(), head())
    plain = lc.certify(model, IMAGES).radius
    model.forward = model.forward  # type: ignore[method-assign]
    assert torch.equal(lc.certify(model, IMAGES).radius, plain)
    model.forward = nn.Sequential(Flatten(), head()).forward  # type: ignore[method-assign]
    with pytest.raises(NotProvedError, match="model: Sequential was given another forward"):
        lc.certify(model, IMAGES)


def test_what_a_layer_of_ones_own_is_made_of_is_its_own_affair() -> None:
    class Block(LipschitzModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Cosine(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 0.5 * self.inner(x)

        def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
            return 7.0

        def rounding_error(self, input_shape: tuple[int, ...]) -> tuple[float, float]:
            return 1e-12, 1e-12

    assert lc.certify(nn.Sequential(Flatten(), Block(), head()), IMAGES).lipschitz == 7


def test_a_parametrised_layer_of_ones_own_is_proved_anew() -> None:
    class Gain(LipschitzModule):
        def __init__(self) -> None:
            super().__init__()
            self.gains, self.w = [1.0], nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gains[0] * x

        def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
            return self.gains[0]

        def rounding_error(self, input_shape: tuple[int, ...]) -> tuple[float, float]:
            return self.gains[0] * 2.0**-53, 0.0

    gain = Gain()
    nn.utils.parametrize.register_parametrization(gain, "w", nn.Identity())
    model = nn.Sequential(Flatten(), gain, head())
    assert lc.certify(model, IMAGES).lipschitz == 1
    gain.gains[0] = 100.0
    assert lc.certify(model, IMAGES).lipschitz == 100


class Coarse(lc.MaxMin):
    """Rounds to float32, and says so."""

    freeze = LipschitzModule.freeze

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).float().to(x.dtype)

    def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
        return 1.0

    def rounding_error(self, input_shape: tuple[int, ...]) -> tuple[float, float]:
        return 2.0**-23, 1e-30


def test_the_rounding_that_a_layer_states_is_the_one_that_counts() -> None:
    found = lc.certify(nn.Sequential(Flatten(), Coarse(), head()), IMAGES)
    norms = IMAGES.flatten(1).double().norm(dim=1)
    assert (found.rounding >= 2 * 2.0**-23 * norms).all()


def test_the_rounding_of_a_forward_of_ones_own_is_not_inherited() -> None:
    class Silent(lc.MaxMin):
        freeze = LipschitzModule.freeze

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).float().to(x.dtype)

        def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
            return 1.0

    class Coarser(Coarse):
        """What it inherits speaks of float32."""

        freeze = LipschitzModule.freeze

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).bfloat16().to(x.dtype)

        def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
            return 1.0

    for layer in (Silent(), Coarser()):
        with pytest.raises(NotProvedError, match=f"1: {type(layer).__name__} has no proved rounding error"):
            lc.certify(nn.Sequential(Flatten(), layer, head()), IMAGES)


def test_weights_that_overflow_the_rounding_bound_certify_nothing() -> None:
    model = lc.lipconvnet(
        5, activation="maxmin", num_classes=4, width=2, image_size=8, in_channels=1
    ).double()
    with torch.no_grad():
        model.body.stage1.conv1.bias.fill_(1e160)  # type: ignore[union-attr]
    with pytest.raises(NotProvedError, match="overflows"):
        lc.certify(model, torch.rand(2, 1, 8, 8))


def test_entries_whose_squares_underflow_count() -> None:
    """Features of 1e-161: the squares of their entries are 0, the rounding of 60 turns of them is not."""

    def term(scale: float) -> float:
        turns = [FrozenLinear(t.weight.double(), None) for t in (turn() for _ in range(60))]
        small = FrozenLinear(scale * torch.eye(4, dtype=torch.float64), None)
        model = nn.Sequential(Flatten(), small, *turns, head().double())
        return float((lc.certify(model, IMAGES[:1].double()).rounding / scale).item())

    assert term(1e-161) >= 0.1 * term(1e-80)


@pytest.mark.parametrize("conv", ["bcop", "bjorck"])
def test_weights_near_a_singular_matrix_are_refused(conv: str) -> None:
    layer = lc.BCOP(4, 4, 1) if conv == "bcop" else lc.OrthogonalLinear(4, 4, method="bjorck")
    parts = [layer, Flatten()] if conv == "bcop" else [Flatten(), layer]
    model = nn.Sequential(*parts, head())
    assert lc.certify(model, IMAGES).radius.max() > 0
    with torch.no_grad():
        layer.weight.copy_(torch.ones(4, 4))
    with pytest.raises(NotProvedError, match="condition number"):
        lc.certify(model, IMAGES)


def test_layers_whose_names_would_collide_when_frozen() -> None:
    inner = nn.Sequential(OrderedDict(b=lc.MaxMin()))
    model = nn.Sequential(OrderedDict([("f", Flatten()), ("a", inner), ("a_b", turn()), ("head", head())]))
    with pytest.raises(ArgumentError, match="two layers would be called 'a_b'"):
        lc.freeze(model, (4, 1, 1))


def test_a_polynomial_has_a_degree() -> None:
    with pytest.raises(ArgumentError, match="coefficients: expected those of a polynomial of degree 1"):
        FrozenSeries(torch.zeros(2, 2, 3, 3), (1.0,), in_channels=2, out_channels=2, stride=1, bias=None)


def test_a_layer_of_ones_own_needs_no_freeze() -> None:
    class Half(LipschitzModule):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / 2

        def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
            return 0.5

        def rounding_error(self, input_shape: tuple[int, ...]) -> tuple[float, float]:
            return 0.0, 2.0**-1070

    assert lc.certify(nn.Sequential(Flatten(), Half(), head()), IMAGES).lipschitz == 0.5


class Loud(lc.MaxMin):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * (super().__call__(x) - 0.5)


class Repeats(nn.Sequential):
    def __iter__(self) -> Iterator[nn.Module]:
        return iter([*self._modules.values()] * 3)  # type: ignore[list-item]


class Calls(nn.Sequential):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(20 * (x - 0.5))


class LoudKernel(CircularConv2d):
    def linear(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * super().linear(x)


def with_another_activate() -> nn.Module:
    layer = lc.MaxMin()
    layer.activate = lambda x: 10 * (x - 0.5)  # type: ignore[method-assign]
    return layer


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (with_another_activate(), "1: MaxMin was given another activate"),
        (Loud(), "1: Loud has a forward of its own but inherits lipschitz_bound"),
        (Repeats(turn()), "1: Repeats is an nn.Sequential with a __iter__ of its own"),
        (Calls(turn()), "1: Calls is an nn.Sequential with a __call__ of its own"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_runs_in_the_place_of_a_forward_is_refused(layer: nn.Module, message: str) -> None:
    with pytest.raises(NotProvedError, match=message):
        lc.certify(nn.Sequential(Flatten(), layer, head()), IMAGES)


def test_a_convolution_with_a_linear_part_of_its_own_is_refused() -> None:
    layer = LoudKernel(torch.eye(4).view(4, 4, 1, 1), None)
    with pytest.raises(NotProvedError, match="0: LoudKernel has a forward of its own"):
        lc.certify(nn.Sequential(layer, Flatten(), head()), IMAGES)


def test_a_method_that_is_replaced_after_a_proof_is_refused() -> None:
    model = nn.Sequential(lc.SOC(4, 4, 1), Flatten(), head()).eval()
    lc.certify(model, IMAGES)
    before = model[0].transform
    model[0].transform = lambda x: 10 * before(x)
    with pytest.raises(NotProvedError, match="0: SOC was given another transform"):
        lc.certify(model, IMAGES)


def test_a_wrapper_with_a_forward_of_its_own_is_refused() -> None:
    model = nn.Sequential(Flatten(), lc.MaxMin(), head())
    wrapper = torch.optim.swa_utils.AveragedModel(model)
    lc.certify(wrapper, IMAGES)
    wrapper.forward = lambda x: model(10 * x)  # type: ignore[method-assign]
    with pytest.raises(NotProvedError, match="model: AveragedModel was given another forward"):
        lc.certify(wrapper, IMAGES)


def test_a_head_that_computes_in_its_own_way_is_refused() -> None:
    class CoarseHead(ConstantHead):
        freeze = LipschitzModule.freeze

        def logits(self, x: torch.Tensor) -> torch.Tensor:
            return (super().logits(x) + 1e12) - 1e12

        def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
            return super().lipschitz_bound(input_shape)

        def pair_distance_bounds(self) -> torch.Tensor:
            return super().pair_distance_bounds()

    with pytest.raises(NotProvedError, match="head: CoarseHead does not freeze to fixed rows"):
        lc.certify(nn.Sequential(Flatten(), CoarseHead(torch.eye(4), None)), IMAGES)


def as_attribute(layer: FrozenLinear) -> None:
    weight = layer.weight
    del layer.weight
    layer.weight = weight


def as_fleeting_buffer(layer: FrozenLinear) -> None:
    layer.register_buffer("weight", layer.weight, persistent=False)


def hidden_by_a_hook(layer: FrozenLinear) -> None:
    layer._register_state_dict_hook(lambda module, state, prefix, local: state.pop(f"{prefix}weight"))


@pytest.mark.parametrize("hide", [as_attribute, as_fleeting_buffer, hidden_by_a_hook])
def test_the_memory_sees_weights_wherever_they_are(hide: Callable[[FrozenLinear], None]) -> None:
    layer = FrozenLinear(torch.eye(4), torch.randn(4)).double()
    hide(layer)
    model = nn.Sequential(Flatten(), layer, head()).double()
    assert lc.certify(model, IMAGES).lipschitz == pytest.approx(1)
    layer.weight.mul_(50)
    assert lc.certify(model, IMAGES).lipschitz == pytest.approx(50)


def test_the_memory_sees_coefficients_in_a_list() -> None:
    layer = lc.SOC(4, 4, 3).double().frozen_series((4, 1, 1))
    layer.coefficients = list(layer.coefficients)  # type: ignore[assignment]
    model = nn.Sequential(layer, Flatten(), head()).double()
    before = lc.certify(model, IMAGES).lipschitz
    layer.coefficients[0] *= 100  # type: ignore[index]
    assert lc.certify(model, IMAGES).lipschitz > 50 * before


def test_a_model_that_changes_during_the_proof_does_not_enter_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(Flatten(), FrozenLinear(torch.eye(4), torch.randn(4)), head())

    def racing(copied: nn.Module) -> str | None:
        found = fingerprint(copied)
        model[1].weight.mul_(0.01)  # as another thread's step would
        return found

    with monkeypatch.context() as patch:
        patch.setattr(exact, "fingerprint", racing)
        assert lc.certify(model, IMAGES).lipschitz == pytest.approx(1)
    model[1].weight.mul_(100)
    assert lc.certify(model, IMAGES).lipschitz == pytest.approx(1)


def test_what_the_memory_hands_out_is_a_copy() -> None:
    model = nn.Sequential(Flatten(), lc.OrthogonalLinear(4, 4), lc.NormalizedLinear(4, 4)).eval()
    before = lc.certify(model, IMAGES)
    layer_bounds(model, (4, 1, 1))[1].layer.weight.mul_(0.1)
    certified_classifier(model, (4, 1, 1)).exact.float()
    after = lc.certify(model, IMAGES)
    assert torch.equal(after.radius, before.radius)
    assert torch.equal(after.margin, before.margin)


@pytest.mark.parametrize("shape", [(4, 4, 3, 1), (4, 4, 2, 2), (4, 4, 3)])
def test_kernels_that_are_not_odd_squares_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"kernel: expected .* with k odd, got shape"):
        CircularConv2d(torch.zeros(shape), None)
    with pytest.raises(ArgumentError, match=r"kernel: expected .* with k odd, got shape"):
        FrozenSeries(torch.zeros(shape), (1.0, 1.0), in_channels=4, out_channels=4, stride=1, bias=None)


def test_a_linear_cayley_transform_that_is_mostly_rounding_is_refused() -> None:
    layer = lc.OrthogonalLinear(4, 4, method="cayley")
    assert layer.scale is not None
    with torch.no_grad():
        layer.scale.fill_(1e14)
    with pytest.raises(NotProvedError, match="1: the Cayley transform in OrthogonalLinear has a scale"):
        lc.certify(nn.Sequential(Flatten(), layer, head()), IMAGES)


def test_weights_whose_norm_the_iteration_misses_are_refused() -> None:
    """The leading plane of the kernel is orthogonal to where the iteration starts."""
    layer = lc.SOC(4, 4, 1, bias=False).double().eval()
    start = start_vector(layer.weight, 1, 4, 1, 1).flatten()
    basis = torch.linalg.qr(torch.cat([start[:, None], torch.randn(4, 3, dtype=torch.float64)], dim=1)).Q
    a, b, c, d = basis.unbind(1)
    with torch.no_grad():
        layer.weight[0] = torch.outer(a, b) - torch.outer(b, a) + 3 * (torch.outer(c, d) - torch.outer(d, c))
    with pytest.raises(NotProvedError, match="0: SOC has weights whose norm the power iteration does not"):
        lc.certify(nn.Sequential(layer, Flatten(), head()).double(), IMAGES)


class Configurable(LipschitzModule):
    """Keeps functions, as layers of people do; what they say of it holds for all of them."""

    function = torch.neg
    other = staticmethod(torch.neg)

    def __init__(self) -> None:
        super().__init__()
        self.function, self.other = torch.neg, torch.positive

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.function(x))

    def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
        return 1.0

    def rounding_error(self, input_shape: tuple[int, ...]) -> tuple[float, float]:
        return 0.0, 0.0


def test_functions_that_a_layer_of_ones_own_keeps_are_its_own_affair() -> None:
    assert lc.certify(nn.Sequential(Flatten(), Configurable(), head()), IMAGES).lipschitz == 1


def test_notes_on_a_network_do_not_switch_the_memory_off() -> None:
    model = lc.lipconvnet(5, num_classes=3, width=2, image_size=8, in_channels=1)
    known = fingerprint(model)
    assert known is not None
    model.class_names = {0: "cat"}  # type: ignore[assignment]
    model.opened = {"in", "a", "set"}  # type: ignore[assignment]
    assert fingerprint(model) == known
    model.body[0].conv1.anything = {"a", "set"}  # type: ignore[union-attr, assignment]
    assert fingerprint(model) is None


def test_the_hash_of_other_networks_sees_their_settings() -> None:
    names = {exact.network_hash(nn.Sequential(zeroed(lc.SOC(2, 2, 3, series=s)))) for s in SERIES}
    assert len(names) == len(SERIES)


def zeroed(layer: nn.Module) -> nn.Module:
    for tensor in layer.state_dict().values():
        tensor.zero_()
    return layer


class Turn(LipschitzModule):
    """An isometry that forgets to say that it turns the map."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.rot90(1, (2, 3))

    def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
        return 1.0

    def rounding_error(self, input_shape: tuple[int, ...]) -> tuple[float, float]:
        return 0.0, 0.0


def test_a_layer_that_makes_other_maps_than_it_says_is_refused() -> None:
    model = nn.Sequential(Turn(), lc.SOC(2, 2, 3), Flatten(), ConstantHead(torch.randn(3, 32), None))
    with pytest.raises(NotProvedError, match=r"0: the layer makes \(2, 16, 1\), but its output_shape says"):
        lc.certify(model, torch.rand(2, 2, 1, 16))
    with pytest.raises(NotProvedError, match="output_shape"):
        lc.lipschitz_upper_bound(model, (2, 1, 16))
    assert lc.lipschitz_upper_bound(model, (2, 4, 4)) > 0  # which turns into itself


def test_strides_that_are_not_made_are_refused() -> None:
    series = lc.SOC(2, 2, 3).evaluation_series.coefficients
    with pytest.raises(ArgumentError, match="stride: expected 1 or 2, got 3"):
        FrozenSeries(torch.zeros(2, 2, 3, 3), series, in_channels=2, out_channels=2, stride=3, bias=None)


class LouderSeries(FrozenSeries):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(x)

    def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
        return 10 * super().lipschitz_bound(input_shape)

    def rounding_error(self, input_shape: tuple[int, ...]) -> tuple[float, float]:
        return 1e-9, 1e-9


def test_what_a_subclass_states_is_what_counts() -> None:
    frozen = lc.SOC(4, 4, 3).frozen_series((4, 4, 4))
    louder = LouderSeries(
        frozen.kernel, frozen.coefficients, in_channels=4, out_channels=4, stride=1, bias=None
    )
    assert lc.lipschitz_upper_bound(nn.Sequential(louder), (4, 4, 4)) == pytest.approx(10, rel=1e-4)


class Opposite(lc.OrthogonalHead):
    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return -super().logits(x)

    def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
        return super().lipschitz_bound(input_shape)

    def pair_distance_bounds(self) -> torch.Tensor:
        return super().pair_distance_bounds()

    def freeze(self, input_shape: tuple[int, ...]) -> nn.Module:
        frozen = super().freeze(input_shape)
        return ConstantHead(-frozen.weight, -frozen.bias)  # type: ignore[arg-type, operator]


def test_a_head_is_certified_by_its_own_freeze() -> None:
    model = nn.Sequential(Flatten(), Opposite(4, 4)).double().eval()
    images = IMAGES.double()
    assert torch.equal(lc.certify(model, images).prediction, model(images).argmax(1))


class RawLinear(lc.OrthogonalLinear):
    """Freezes to a copy, whose weight is not the matrix that it applies."""

    freeze = LipschitzModule.freeze  # type: ignore[assignment]


def test_a_head_whose_matrix_is_unknown_is_refused() -> None:
    last = lc.OrthogonalHead(4, 4)
    last.linear = RawLinear(4, 4)
    with pytest.raises(NotProvedError, match="RawLinear freezes to RawLinear, of which no matrix is known"):
        lc.certify(nn.Sequential(Flatten(), last), IMAGES)


class Scaled(Activation):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * super().forward(x)


class ScaledMaxMin(lc.MaxMin, Scaled):
    """Activate is lipcert's and comes first, forward is not."""


def test_a_forward_that_comes_in_from_the_side_is_refused() -> None:
    with pytest.raises(NotProvedError, match="ScaledMaxMin has a forward of its own but inherits"):
        lc.lipschitz_upper_bound(nn.Sequential(Flatten(), ScaledMaxMin()), (4, 1, 1))


class SingleBound(LipschitzModule):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.75

    def lipschitz_bound(self, input_shape: tuple[int, ...]) -> float:
        return torch.tensor(0.75)  # type: ignore[return-value]


def test_bounds_in_single_precision_are_multiplied_in_double() -> None:
    model = nn.Sequential(lc.Normalize(0.5, 0.2507), SingleBound())
    # Exactly: 0.2507 as it is stored.
    true = Fraction(3, 4) / Fraction(float(torch.tensor(0.2507)))
    assert Fraction(lc.lipschitz_upper_bound(model, (1, 2, 2))) >= true


SCALED = """
class Scaled(lc.LipschitzModule):
    def forward(self, x):
        return K * x

    def lipschitz_bound(self, input_shape):
        return float(K)

    def rounding_error(self, input_shape):
        return K * 2.0**-53, 0.0
"""


def by_exec(factor: float) -> nn.Module:
    names = {"lc": lc, "K": factor}
    exec(SCALED, names)
    return names["Scaled"]()  # type: ignore[operator]


def by_type(factor: float) -> nn.Module:
    methods = {
        "forward": lambda self, x: factor * x,
        "lipschitz_bound": lambda self, input_shape: factor,
        "rounding_error": lambda self, input_shape: (factor * 2.0**-53, 0.0),
    }
    return type("Scaled", (LipschitzModule,), methods)()  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [by_exec, by_type])
def test_classes_that_no_file_has_are_proved_anew(make: Callable[[float], nn.Module]) -> None:
    """Python calls their module builtins or abc, as if they were its own."""
    bounds = [lc.certify(nn.Sequential(Flatten(), make(k), head()), IMAGES).lipschitz for k in (1.0, 100.0)]
    assert bounds == [1.0, 100.0]


def test_weights_that_torch_may_keep_from_before_are_refused() -> None:
    linear = nn.Linear(4, 4)
    model = nn.Sequential(Flatten(), linear)
    nn.utils.parametrize.register_parametrization(linear, "weight", nn.Identity())
    before = lc.certify(model, IMAGES).radius
    with nn.utils.parametrize.cached(), pytest.raises(NotProvedError, match=r"1: .* parametrize.cached\(\)"):
        lc.certify(model, IMAGES)
    assert torch.equal(lc.certify(model, IMAGES).radius, before)


def test_a_call_that_torch_did_not_compile_is_refused() -> None:
    model = nn.Sequential(Flatten(), turn(), head())
    model.compile(backend="eager")
    lc.certify(model, IMAGES)
    model[1]._compiled_call_impl = torch.zeros_like
    with pytest.raises(NotProvedError, match="1: FrozenLinear was given another call"):
        lc.certify(model, IMAGES)


def test_bounds_where_subnormals_are_flushed() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        tiny = nn.Sequential(lc.Normalize(0.0, 1e160), lc.Normalize(0.0, 1e160))
        bound = lc.lipschitz_upper_bound(tiny, input_shape=(1, 2, 2))
    finally:
        torch.set_flush_denormal(False)
    assert bound >= 1e-320


def test_a_frozen_network_is_the_same_under_autocast_and_can_be_attacked() -> None:
    for series in SERIES:
        model = lc.lipconvnet(5, num_classes=3, width=2, image_size=4, in_channels=1, series=series).eval()
        images = torch.rand(3, 1, 4, 4)
        plain = lc.freeze(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = lc.freeze(model)
        with torch.inference_mode():
            inferred = lc.freeze(model)
        assert torch.equal(plain(images), cast(images))
        images.requires_grad_()
        inferred(images).sum().backward()
        assert images.grad is not None
