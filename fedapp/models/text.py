"""Text classifiers: HtFLlib's six (HtFE6-txt), small ones of the same kinds, and LEAF's character model.

A text is a row of token ids, int64, of fixed length: 0 is padding, 1 an unknown word. Padding contributes nothing,
wherever it stands: the tokens of a row are moved together first (:func:`packed_left`). Then the mean is taken over
tokens only, recurrent networks read packed sequences that end with the last token, and the Transformer's attention is
masked. A row of nothing but padding reads as one padding token, whose embedding is 0.

In HtFLlib's public code four of the six (fastText, LSTM, logistic regression, GRU) apply ``log_softmax`` to what they
hand on, so that their "features" are log-probabilities of 512 units that no loss ever names. Ours are the features
before that; names that end in ``-legacy`` keep the quirk. Beyond it, its public code differs in that padding counts:
the mean is over the padded length, and the recurrent networks end on padding; ``-legacy`` does not restore that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from fedapp.models.split import SplitModel

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

PADDING = 0
WIDTH, SMALL = 512, 64
DROPOUT = 0.2


class Mean(nn.Module):
    """The mean of the tokens' embeddings, and what follows it.

    Args:
        after: Maps means (B, E) to native features.
    """

    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.after = after

    def forward(self, embedded: Float[Tensor, "B T E"], lengths: Int[Tensor, " B"]) -> Float[Tensor, "B n"]:
        """Return the native features of texts whose first ``lengths`` positions are tokens."""
        tokens = is_token(embedded, lengths).unsqueeze(2)
        features: Tensor = self.after((embedded * tokens).sum(dim=1) / lengths.unsqueeze(1))
        return features


class Recurrent(nn.Module):
    """The last layer's state after the last token (and, read backwards, after the first), and what follows it.

    Args:
        rnn: Recurrent layers with the batch first.
        after: Maps states (B, directions * H) to native features.
    """

    def __init__(self, rnn: nn.LSTM | nn.GRU, after: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn
        self.after = after

    def forward(self, embedded: Float[Tensor, "B T E"], lengths: Int[Tensor, " B"]) -> Float[Tensor, "B n"]:
        """Return the native features of texts whose first ``lengths`` positions are tokens."""
        sequences = pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, state = self.rnn(sequences)
        hidden = state[0] if isinstance(state, tuple) else state  # (layers * directions, B, H)
        directions = 2 if self.rnn.bidirectional else 1
        features: Tensor = self.after(torch.cat(list(hidden[-directions:]), dim=1))
        return features


class Transformer(nn.Module):
    """The output of an encoder at the first token; positions are told by sinusoids.

    Args:
        width: Width of embeddings and output.
        heads: Attention heads.
        hidden: Width of the feed-forward layers.
        layers: Encoder layers; each draws weights of its own.
    """

    def __init__(self, width: int, heads: int, hidden: int, layers: int = 2) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.1, batch_first=True) for _ in range(layers)
        )

    def forward(self, embedded: Float[Tensor, "B T E"], lengths: Int[Tensor, " B"]) -> Float[Tensor, "B n"]:
        """Return the native features of texts whose first ``lengths`` positions are tokens."""
        scaled = embedded * math.sqrt(embedded.shape[2])
        x = self.dropout(scaled + sinusoids(embedded.shape[1], embedded.shape[2]).to(scaled))
        padding = ~is_token(embedded, lengths)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding)
        first: Tensor = x[:, 0]
        return first


@dataclass(frozen=True)
class Layout:
    """What tells one model of this family from another.

    Attributes:
        reader: Makes the module that maps embeddings and lengths to native features.
        width: Width of the embeddings.
        native_dim: Length of the native features.
        spread: If not 0, embeddings start uniform in [-spread, spread]; else from torch's normal distribution.
        legacy: Whether features pass through ``log_softmax``.
    """

    reader: Callable[[], nn.Module]
    width: int = WIDTH
    native_dim: int = WIDTH
    spread: float = 0.0
    legacy: bool = False


def _fasttext(width: int) -> nn.Module:
    return Mean(nn.Linear(width, width))


def _gru(width: int) -> nn.Module:
    return Recurrent(nn.GRU(width, width, 2, dropout=DROPOUT, batch_first=True), nn.Dropout(DROPOUT))


def _lstm() -> nn.Module:
    rnn = nn.LSTM(WIDTH, WIDTH, 2, dropout=DROPOUT, batch_first=True)
    return Recurrent(rnn, nn.Sequential(nn.ReLU(), nn.Dropout(DROPOUT)))


def _bilstm() -> nn.Module:
    return Recurrent(nn.LSTM(WIDTH, WIDTH, bidirectional=True, batch_first=True), nn.Linear(2 * WIDTH, WIDTH))


def _char_lstm() -> nn.Module:
    """Return LEAF's stacked LSTM: two layers of 256."""
    return Recurrent(nn.LSTM(8, 256, 2, batch_first=True), nn.Identity())


def _mean() -> nn.Module:
    return Mean(nn.Identity())


LAYOUTS = {
    "fasttext": Layout(lambda: _fasttext(WIDTH)),
    "lstm": Layout(_lstm),
    "bilstm": Layout(_bilstm),
    "transformer": Layout(lambda: Transformer(WIDTH, heads=8, hidden=2048), spread=0.1),
    "text-logreg": Layout(_mean),
    "gru": Layout(lambda: _gru(WIDTH)),
    "fasttext-legacy": Layout(lambda: _fasttext(WIDTH), legacy=True),
    "lstm-legacy": Layout(_lstm, legacy=True),
    "text-logreg-legacy": Layout(_mean, legacy=True),
    "gru-legacy": Layout(lambda: _gru(WIDTH), legacy=True),
    "small-fasttext": Layout(lambda: _fasttext(SMALL), SMALL, SMALL),
    "small-gru": Layout(lambda: _gru(SMALL), SMALL, SMALL),
    "small-transformer": Layout(lambda: Transformer(SMALL, heads=4, hidden=128), SMALL, SMALL, spread=0.1),
    "char-lstm": Layout(_char_lstm, width=8, native_dim=256),
}


def build(name: str, num_classes: int, input_shape: tuple[int], feature_dim: int, vocabulary: int) -> SplitModel:
    """Build a model of ``LAYOUTS``; arguments as for :func:`fedapp.models.build`. Rows may have any length."""
    layout = LAYOUTS[name]
    kind = LogSoftmaxModel if layout.legacy else SplitModel
    return kind(Reader(layout, vocabulary), nn.Linear(feature_dim, num_classes), feature_dim)


class Reader(nn.Module):
    """Embedding and reader: token ids to native features.

    Args:
        layout: The model's layout.
        vocabulary: Number of token ids, padding and unknown included.
    """

    def __init__(self, layout: Layout, vocabulary: int) -> None:
        super().__init__()
        self.native_dim = layout.native_dim
        self.embedding = nn.Embedding(vocabulary, layout.width, padding_idx=PADDING)
        if layout.spread:
            nn.init.uniform_(self.embedding.weight, -layout.spread, layout.spread)
            nn.init.zeros_(self.embedding.weight[PADDING])
        self.reader = layout.reader()

    def forward(self, x: Int[Tensor, "B T"]) -> Float[Tensor, "B n"]:
        """Return the native features of texts."""
        if not len(x):  # a client without samples is asked for the width of its features, too
            return self.embedding.weight.new_zeros(0, self.native_dim)
        tokens, lengths = packed_left(x)
        features: Tensor = self.reader(self.embedding(tokens), lengths)
        return features


class LogSoftmaxModel(SplitModel):
    """HtFLlib's quirk: the features are log-probabilities, their exponentials sum to 1."""

    def features(self, x: Int[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        """Return the pooled features of texts, through ``log_softmax``."""
        return F.log_softmax(super().features(x), dim=1)


def packed_left(x: Int[Tensor, "B T"]) -> tuple[Int[Tensor, "B t"], Int[Tensor, " B"]]:
    """Move the tokens of every row together, to the left, and cut off what is padding in all rows.

    Returns:
        The rows, as long as the longest of them, and their lengths, at least 1.

    Example:
        >>> packed_left(torch.tensor([[0, 5, 0, 7, 0], [0, 0, 0, 0, 0]]))
        (tensor([[5, 7],
                [0, 0]]), tensor([2, 1]))
    """
    padding = x == PADDING
    lengths = (~padding).sum(dim=1).clamp(min=1)
    order = padding.to(torch.uint8).argsort(dim=1, stable=True)
    return x.gather(1, order)[:, : int(lengths.max())], lengths


def is_token(embedded: Float[Tensor, "B T E"], lengths: Int[Tensor, " B"]) -> Bool[Tensor, "B T"]:
    """Return which positions hold tokens, the first ``lengths`` of each row."""
    return torch.arange(embedded.shape[1], device=lengths.device) < lengths.unsqueeze(1)


def sinusoids(length: int, width: int) -> Float[Tensor, "T E"]:
    """Return the Transformer's positions (1706.03762, section 3.5), float32.

    ``P[t, 2i] = sin(t / 10000^(2i / E))`` and ``P[t, 2i + 1] = cos(t / 10000^(2i / E))``.

    Example:
        >>> sinusoids(2, 2)
        tensor([[0.0000, 1.0000],
                [0.8415, 0.5403]])
    """
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angles = torch.arange(length).unsqueeze(1) * rates  # (T, E / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
