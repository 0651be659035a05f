"""A text model for token ids: the mean of the token vectors and a linear layer."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from fedrecall.config.options import Size
from fedrecall.errors import InputError
from fedrecall.models.heads import HeadOption, ScaleOption, with_head


class MeanEmbedding(nn.Module):
    """A linear layer on the mean of a text's token vectors without padding; the mean of padding alone is zero.

    The bag of words of Joulin et al., "Bag of Tricks for Efficient Text Classification", 2016, arXiv 1607.01759.
    Vectors start normal with variance 1 (that of `padding` at zero), the linear layer with PyTorch's defaults.
    """

    def __init__(self, vocabulary: int, dimension: int, num_classes: int, padding: int | None) -> None:
        super().__init__()
        self.padding = padding
        # Dense gradients: they are views into the flat vector.
        self.vectors = nn.Embedding(vocabulary, dimension, padding_idx=padding, sparse=False)
        self.head = nn.Linear(dimension, num_classes)

    def forward(self, ids: Tensor) -> Tensor:
        vectors = self.look_up(ids)
        if self.padding is None:
            mean = vectors.mean(1)
        else:
            # Mask the padding, because an algorithm may change its vector from zero.
            kept = (ids != self.padding).unsqueeze(2).to(vectors.dtype)
            mean = (vectors * kept).sum(1) / kept.sum(1).clamp(min=1)
        logits: Tensor = self.head(mean)
        return logits

    def look_up(self, ids: Tensor) -> Tensor:
        if ids.is_floating_point():
            raise InputError(f"model embedding takes token ids, which are whole numbers, but samples are {ids.dtype}")
        try:
            vectors: Tensor = self.vectors(ids)
        except IndexError:  # torch's error does not say which id is wrong
            self.refuse(int(ids.min()), int(ids.max()))
            raise
        return vectors

    def refuse(self, least: int, largest: int) -> None:
        """Raise an `InputError` unless all ids from `least` to `largest` are in the vocabulary."""
        last = self.vectors.num_embeddings - 1
        if least < 0 or largest > last:
            wrong = least if least < 0 else largest
            raise InputError(
                f"a token id is {wrong}, but model.vocabulary is {last + 1}; ids from 0 to {last} were expected"
            ) from None


def embedding(
    sample_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: Annotated[Size, "number of different token ids, that of the padding included"],
    dimension: Annotated[Size, "length of a token's vector"] = 64,
    padding: Annotated[int | None, "the id that fills up short texts and does not count; null: there is none"] = 0,
    head: HeadOption = "linear",
    scale: ScaleOption = 10.0,
) -> nn.Module:
    """A linear layer on the mean of token vectors, for texts as token ids."""
    if len(sample_shape) != 1 or sample_shape[0] < 1:
        raise InputError(
            f"model embedding takes texts as vectors of token ids, but a sample of this data is {sample_shape}"
        )
    for key, given in (("vocabulary", vocabulary), ("dimension", dimension)):
        if given < 1:
            raise InputError(f"model.{key} is {given}; a number of at least 1 was expected")
    if padding is not None and not 0 <= padding < vocabulary:
        raise InputError(f"model.padding is {padding}; an id from 0 to {vocabulary - 1}, or null, was expected")
    return with_head(MeanEmbedding(vocabulary, dimension, num_classes, padding), head, scale)
