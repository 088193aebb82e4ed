"""The mathematics: pure functions on tensors and arrays; no Flower, nothing else of fedapp."""
