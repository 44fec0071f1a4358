"""No command loads or hashes the test set, reads a network, proves or certifies more than once."""

from collections import Counter
from pathlib import Path

import pytest

from lipcert.explore import page, server

from .conftest import Command

READ, LOAD, HASH, PROVE = "read a proved network", "load test images", "hash test images", "prove a model"
WEIGHTS, CERTIFY = "read best.safetensors", "certify 360 images"
TRAIN = {"load train images", "hash train images", WEIGHTS, PROVE, LOAD, HASH, CERTIFY}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("certify RUN", {READ, LOAD, HASH, CERTIFY}),
        (
            "certify RUN/best.safetensors --data digits",
            {WEIGHTS, PROVE, LOAD, HASH, CERTIFY},
        ),
        ("audit RUN --count 2 --attacks noise", {READ, LOAD, "certify 2 images"}),
        ("verify RUN --sample 1", {f"{READ} independently", LOAD, HASH}),
        ("explore RUN", {READ, LOAD}),
        ("export RUN --onnx a.onnx", {READ}),
        ("export RUN/best.safetensors --onnx a.onnx", {WEIGHTS, PROVE}),
        ("report RUN --png pictures", {READ, LOAD, HASH}),
        ("serve RUN --port 0", {READ}),
        ("train --recipe paper --data digits --epochs 1 --width 2", TRAIN),
    ],
)
def test_nothing_is_done_twice(
    command: Command,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    counts: Counter[str],
    line: str,
    expected: set[str],
) -> None:
    monkeypatch.setattr(page, "need_gradio", lambda: None)
    monkeypatch.setattr(server, "serve", lambda *_: None)
    monkeypatch.setattr("lipcert.serve.server.run", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    result = command(*line.replace("RUN", str(run)).split())
    assert result.code == 0, result.err
    assert counts == dict.fromkeys(expected, 1)
