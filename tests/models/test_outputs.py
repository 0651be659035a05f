"""Models whose outputs or inputs are others than here: refused with the lines that wrap them, and those lines work."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrecall import Federation, Iid, federate
from fedrecall.errors import InputError


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


class HuggingFaceLike(nn.Module):
    """Token ids, and a mask without which padding would count."""

    def __init__(self, kind: str = "logits") -> None:
        super().__init__()
        self.words, self.head, self.kind = nn.Embedding(9, 4), nn.Linear(4, 2), kind

    def forward(self, input_ids, attention_mask=None, labels=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits = self.head((self.words(input_ids) * mask[..., None]).mean(1))
        return {"logits": Output(logits), "dict": OrderedDict(logits=logits), "tuple": (logits, mask)}[self.kind]


class Masked(HuggingFaceLike):
    def forward(self, input_ids, attention_mask):
        return super().forward(input_ids, attention_mask).logits


@pytest.fixture(scope="module")
def federation() -> Federation:
    x, y = np.random.default_rng(0).integers(0, 9, (40, 5)), np.arange(40) % 2
    return Federation.from_arrays(x, y, test=(x, y), partition=Iid(clients=4, validation=0.2))


@pytest.mark.parametrize(
    ("model", "sentence", "call"),
    [
        (
            HuggingFaceLike(),
            "the model answers two samples with Output; two rows of 2 class scores were expected",
            "self.model(x, attention_mask=(x != 0).long()).logits",
        ),
        (
            HuggingFaceLike("dict"),
            "the model answers two samples with OrderedDict; two rows of 2 class scores were expected",
            'self.model(x, attention_mask=(x != 0).long())["logits"]',
        ),
        (
            HuggingFaceLike("tuple"),
            "the model answers two samples with tuple; two rows of 2 class scores were expected",
            "self.model(x, attention_mask=(x != 0).long())[0]",
        ),
        (
            Masked(),
            "the model needs attention_mask besides the samples, which are its only input",
            "self.model(x, attention_mask=(x != 0).long())",
        ),
    ],
)
def test_the_refusal_has_the_lines_that_help(model, sentence, call, federation, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        federate(model, federation, rounds=1, out=tmp_path / "a")
    assert str(refused.value) == sentence
    (note,) = refused.value.__notes__
    head, *lines = note.splitlines()
    assert head == "wrap it, for instance:"
    assert len(lines) == 3
    assert lines[-1].endswith(f"return {call}")
    scope = {"torch": torch}
    exec("\n".join(lines), scope)
    run = federate(scope["Wrapped"](model), federation, rounds=1, engine="serial", out=tmp_path / "a")
    assert run.metrics[-1]["test_accuracy"] is not None


def test_what_has_no_known_logits_is_only_refused(federation) -> None:
    class Odd(nn.Linear):
        def forward(self, x):
            return {"scores": super().forward(x.float())}

    with pytest.raises(InputError, match="answers two samples with dict") as refused:
        federate(Odd(5, 2), federation, rounds=1)
    assert not hasattr(refused.value, "__notes__")


def test_the_command_line_shows_the_lines_too(fedrecall, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("twoheads.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, num_classes): super().__init__(); self.a = nn.Linear(784, num_classes)\n"
        "    def forward(self, x): return self.a(x.flatten(1)), x\n"
    )
    done = fedrecall("run", "demo", "model=twoheads:Net")
    assert done.code == 2
    assert "class Wrapped(torch.nn.Module):\n    def __init__" in done.err
    assert done.err.startswith("fedrecall: error: the model answers two samples with tuple")
