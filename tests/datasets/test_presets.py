import dataclasses
from typing import Any

import numpy as np
import pytest

import fedapp.datasets as data
from fedapp.augment import parse as parse_augment
from fedapp.config import RunConfig, SettingError, flatten, parse
from fedapp.datasets import Pool, Source, digits, office_caltech
from fedapp.datasets.augmented_once import augmented_once
from fedapp.datasets.presets import PRESETS, check, settings_of


def pool_of(domains: tuple[str, ...], sizes: tuple[int, ...], is_test: Any) -> Pool:
    count = sum(sizes)
    return Pool(
        inputs=np.zeros((count, 2, 2, 3), dtype=np.uint8),
        labels=np.concatenate([np.arange(size) * 10 // size for size in sizes]),
        class_names=tuple("abcdefghij"),
        domains=np.repeat(np.arange(len(sizes)), sizes),
        domain_names=domains,
        is_test=is_test,
    )


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_of_settings_that_exist(name: str) -> None:
    preset = PRESETS[name]
    config = parse(RunConfig, settings_of(name))
    source = data.DATASETS[config.data.dataset]
    assert source.has_domains
    parse_augment(config.training.augment)
    assert preset.clean in ("", *PRESETS)
    assert bool(preset.clean) == bool(preset.habits)
    if preset.clean:
        assert PRESETS[preset.clean].settings["validation-fraction"]
        assert not PRESETS[preset.clean].habits
        assert PRESETS[preset.clean].clients == preset.clients


def test_own_settings_win_and_an_unknown_preset_is_an_error() -> None:
    assert settings_of("digits-paper", {"batch-size": 8})["batch-size"] == 8
    with pytest.raises(SettingError, match=r"unknown preset 'digits-papr'.*did you mean digits-paper"):
        settings_of("digits-papr")


def test_clean_digits_are_not_mirrored() -> None:
    assert parse_augment(str(PRESETS["digits-paper"].settings["augment"])).flip
    assert not parse_augment(str(PRESETS["digits-clean"].settings["augment"])).flip


def test_digits_paper_gives_the_last_four_clients_one_domain_each_and_one_per_cent(registry: dict[str, Source]) -> None:
    sizes = (6000, 729, 7325, 1000)
    train = pool_of(digits.DOMAINS, sizes, None)
    is_test = np.zeros(len(train), dtype=bool)
    is_test[np.random.default_rng(0).permutation(len(train))[:3000]] = True
    registry["digits"] = Source(
        "digits", lambda _: dataclasses.replace(train, is_test=is_test), "small", 10, (3, 2, 2), True
    )
    config = parse(RunConfig, settings_of("digits-paper")).data
    shares = data.load_shares(config, PRESETS["digits-paper"].clients)
    assert train.domains is not None
    held = [set(train.domains[share.train].tolist()) for share in shares]
    assert held[6:] == [{0}, {1}, {2}, {3}]
    for share, (domain,) in zip(shares, held, strict=True):
        mine = train.domains == domain
        assert len(share.train) == int(0.01 * np.sum(mine & ~is_test))
        np.testing.assert_array_equal(share.test, np.flatnonzero(mine & is_test))


def test_office_paper_gives_every_client_all_ten_classes(registry: dict[str, Source]) -> None:
    sizes = (1123, 958, 295, 157)
    arrays = {
        "domains": np.repeat(np.arange(4), sizes),
        "labels": np.concatenate([np.arange(size) * 10 // size for size in sizes]),
        "images": np.zeros((sum(sizes), 2, 2, 3), dtype=np.uint8),
    }
    made = office_caltech.set_aside(arrays)
    names = office_caltech.REPOSITORY.domains
    pool = dataclasses.replace(
        pool_of(names, sizes, made["is_test"]), labels=made["labels"], domains=made["domains"], inputs=made["images"]
    )
    registry["office-caltech10"] = Source("office-caltech10", lambda _: pool, "small", 10, (3, 2, 2), True)
    for seed in range(3):
        config = parse(RunConfig, settings_of("office-paper", {"partition-seed": seed})).data
        shares = data.load_shares(config, 10)
        for share in shares:
            assert len(np.unique(pool.labels[share.train])) == 10
        assert [len(share.train) for share in shares[6:]] == [179, 153, 47, 25]
        assert [len(share.test) for share in shares[6:]] == [224, 190, 58, 30]


def test_clean_office_uses_every_image_and_tests_on_four_of_ten(registry: dict[str, Source]) -> None:
    sizes = (1123, 958, 295, 157)
    pool = pool_of(office_caltech.REPOSITORY.domains, sizes, np.zeros(sum(sizes), dtype=bool))
    registry["office-caltech10"] = Source("office-caltech10", lambda _: pool, "small", 10, (3, 2, 2), True)
    shares = data.load_shares(parse(RunConfig, settings_of("office-clean")).data, PRESETS["office-clean"].clients)
    assert pool.domains is not None
    held = [set(pool.domains[share.train].tolist()) for share in shares]
    assert held == [{client % 4} for client in range(10)]
    tests = np.bincount(pool.domains[np.concatenate([share.test for share in shares])])
    # n - floor(0.6 n) of clients with 374, 374, 375 images; 319, 319, 320; 147, 148; 78, 79
    assert tests.tolist() == [3 * 150, 3 * 128, 59 + 60, 2 * 32]
    everything = [part for share in shares for part in (share.train, share.validation, share.test)]
    assert sorted(np.concatenate(everything).tolist()) == list(range(sum(sizes)))


@pytest.mark.parametrize("name", PRESETS)
def test_paper_presets_train_as_the_papers_say(name: str) -> None:
    config = parse(RunConfig, settings_of(name))
    training = config.training
    got = (config.num_server_rounds, training.local_epochs, training.batch_size, training.learning_rate)
    fedsap = name.startswith(("digits", "office"))
    assert got == ((100, 10, 64, 0.01) if fedsap else (300, 5, 100, 0.01))
    assert (training.momentum, training.weight_decay) == ((0.9, 5e-4) if fedsap else (0.0, 0.0))


def images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(count, 16, 16, 3), dtype=np.uint8)


@pytest.mark.parametrize("has_test", [False, True])
def test_images_changed_once_are_four_of_five_or_the_training_part(has_test: bool) -> None:
    before, is_test = images(50), np.arange(50) >= (30 if has_test else 50)
    made = augmented_once({"images": before.copy(), "labels": np.zeros(50, dtype=np.int64), "is_test": is_test})
    changed = (made["images"] != before).any(axis=(1, 2, 3))
    chosen = 30 if has_test else 40
    assert chosen - 3 <= changed.sum() <= chosen  # a crop may be the whole image
    assert not (changed & is_test).any()
    assert not made["is_test"].any()
    again = augmented_once({"images": before.copy(), "labels": np.zeros(50, dtype=np.int64), "is_test": is_test})
    np.testing.assert_array_equal(made["images"], again["images"])


def test_changed_image_keeps_its_brightness_and_size() -> None:
    grey = np.full((20, 16, 16, 3), 77, dtype=np.uint8)
    none = np.zeros(20, dtype=bool)
    made = augmented_once({"images": grey.copy(), "labels": np.zeros(20, dtype=np.int64), "is_test": none})
    np.testing.assert_array_equal(made["images"], grey)


def test_a_preset_is_no_record_of_what_was_not_set() -> None:
    usual = flatten(RunConfig())
    for more in ({}, {"dataset": "digits4"}):
        check("pacs-clean", flatten(parse(RunConfig, settings_of("pacs-clean", more))), usual)
    check("", usual, usual)
    with pytest.raises(SettingError, match="preset = pacs-clean sets nothing by itself"):
        check("pacs-clean", flatten(parse(RunConfig, {"preset": "pacs-clean"})), usual)
    with pytest.raises(SettingError, match=r"pacs-claen.*did you mean pacs-clean"):
        check("pacs-claen", usual, usual)
