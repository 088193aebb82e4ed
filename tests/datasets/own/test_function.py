"""What a function of the user's raises, and what it returns that is no number of token ids."""

from pathlib import Path

import pytest

from fedapp.config import SettingError
from fedapp.datasets import load_pool
from tests.datasets.own.examples import function, message, settings


@pytest.mark.parametrize(
    ("body", "why", "cause"),
    [
        ("return 1 // 0", "raised ZeroDivisionError: integer division or modulo by zero; mend it", ZeroDivisionError),
        ("raise KeyError('age')", "raised KeyError: 'age'; mend it", KeyError),
        ("raise SystemError('gone')", "raised SystemError: gone; mend it so that load(", SystemError),
    ],
)
def test_error_of_a_function_names_the_function_and_keeps_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, why: str, cause: type[Exception]
) -> None:
    chosen = function(tmp_path, monkeypatch, body)
    with pytest.raises(SettingError) as caught:
        load_pool(chosen)
    assert f"data-callable = {chosen.own.data_callable!r} {why}" in str(caught.value)
    assert isinstance(caught.value.__cause__, cause)


def test_error_of_a_module_names_the_function_and_keeps_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_broken_module.py").write_text("raise RuntimeError('no licence')\n")
    (tmp_path / "own_number_module.py").write_text("load = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        SettingError, match=r"'own_broken_module:load' cannot be imported \(RuntimeError: no lic"
    ) as caught:
        load_pool(settings("callable", "", data_callable="own_broken_module:load"))
    assert isinstance(caught.value.__cause__, RuntimeError)
    said = message(settings("callable", "", data_callable="own_number_module:load"))
    assert "raised TypeError: 'int' object is not callable" in said


@pytest.mark.parametrize("vocabulary", ["'many'", "7.5", "'7'", "[7]", "None"])
def test_vocabulary_that_is_no_whole_number_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary: str
) -> None:
    body = f"return {{'inputs': np.ones((1, 2), int), 'labels': [0], 'vocabulary': {vocabulary}}}"
    chosen = function(tmp_path, monkeypatch, body)
    with pytest.raises(SettingError) as caught:
        load_pool(chosen)
    assert f"{chosen.own.data_callable} returned token ids 1 to 1 and vocabulary {vocabulary}; " in str(caught.value)
    assert "the number of ids, a whole number" in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("vocabulary", ["np.int64(7)", "torch.tensor(7)", "np.array(7)"])
def test_vocabulary_may_be_a_number_of_an_array_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary: str
) -> None:
    body = f"return {{'inputs': np.ones((1, 2), int), 'labels': [0], 'vocabulary': {vocabulary}}}"
    assert load_pool(function(tmp_path, monkeypatch, body)).vocabulary == 7


def test_test_flags_are_true_or_false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "return {'inputs': np.ones((2, 2)), 'labels': [0, 1], 'is_test': FLAGS}"
    assert "returned is_test of <U5; return true or false" in message(
        function(tmp_path, monkeypatch, body.replace("FLAGS", "['False', 'True']"))
    )
    pool = load_pool(function(tmp_path, monkeypatch, body.replace("FLAGS", "[0, 1]")))
    assert pool.is_test is not None
    assert pool.is_test.tolist() == [False, True]
