"""Promises besides selective risk: pairs, strangers, batches and sets keep their rate, and say when they cannot."""

import numpy as np
import pytest
from scipy.stats import beta, binom, norm

from probmetric.trust.batch import match_e_values, select_by_e_values, select_matches
from probmetric.trust.certificates import CertificateError, least_tested
from probmetric.trust.pairs import certify_pairs
from probmetric.trust.sets import coverage_sets
from probmetric.trust.strangers import certify_strangers, fnir_at_fpir, identification_rates
from probmetric.trust.tolerance import disjoint_pairs, one_of_each, tolerance_limit


def at_most(share, repeats):
    """The largest share of violations that a rule with the true share `share` shows, but for one time in a thousand."""
    return share + 3.1 * np.sqrt(share * (1 - share) / repeats)


# tolerance limits


@pytest.mark.parametrize(("count", "share", "confidence"), [(230, 0.01, 0.9), (500, 0.05, 0.9), (300, 0.02, 0.99)])
def test_as_many_values_lie_above_a_limit_as_the_binomial_allows(count, share, confidence):
    limit = tolerance_limit(np.arange(count), share=share, confidence=confidence)
    assert limit.threshold == count - 1 - limit.allowed
    assert binom.cdf(limit.allowed, count, share) <= 1 - confidence < binom.cdf(limit.allowed + 1, count, share)
    assert binom.cdf(limit.allowed, count, limit.bound) == pytest.approx(1 - confidence, abs=1e-9)
    assert limit.bound <= share


def test_limits_hold_as_often_as_they_say():
    generator = np.random.default_rng(0)
    shares = [1 - tolerance_limit(generator.random(400), share=0.02, confidence=0.9).threshold for _ in range(2000)]
    broken = np.mean(np.array(shares) > 0.02)
    exact = binom.cdf(tolerance_limit(np.arange(400), share=0.02, confidence=0.9).allowed, 400, 0.02)
    assert broken == pytest.approx(exact, abs=3.1 * np.sqrt(exact * (1 - exact) / 2000))


def test_ties_make_a_limit_safer():
    values = np.repeat([0.0, 1.0], [900, 100])
    limit = tolerance_limit(values, share=0.05, confidence=0.9)
    assert limit.threshold == 1.0


def test_too_few_values_say_how_many_are_needed():
    assert least_tested(0.01, 0.9) == 230
    with pytest.raises(CertificateError, match=r"229 pairs; .* needs at least 230"):
        tolerance_limit(np.arange(229), share=0.01, confidence=0.9, noun="pairs")


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, np.nan])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(CertificateError, match="share is"):
        tolerance_limit(np.arange(10), share=share, confidence=0.9)


def test_one_of_each_shows_every_group_once():
    groups = np.array(["b", "a", "b", "c", "c", "c"])
    rows = one_of_each(groups, seed=3)
    assert sorted(groups[rows]) == ["a", "b", "c"]
    assert {one_of_each(groups, seed=seed)[-1] for seed in range(20)} == {3, 4, 5}


def test_disjoint_pairs_share_no_identity_and_no_pair_could_be_added():
    generator = np.random.default_rng(0)
    identities = generator.integers(0, 60, size=(300, 2))
    identities = identities[identities[:, 0] != identities[:, 1]]
    rows = disjoint_pairs(identities)
    used = identities[rows].ravel()
    assert len(set(used)) == len(used)
    assert np.isin(np.delete(identities, rows, axis=0), used).any(axis=1).all()


def of_unequal_sizes(generator, count):
    """A fifth of the people have eight images, the others one: who they are (N,), and all pairs of images (P, 2)."""
    often = generator.random(count) < 0.2
    first, second = np.triu_indices(count, 1)
    repeats = np.where(often, 8, 1)[first] * np.where(often, 8, 1)[second]
    return often, np.repeat(np.stack([first, second], axis=1), repeats, axis=0)


def test_identities_with_many_images_are_paired_as_chance_has_it():
    """Of all matchings of 100 people each is as likely: of the pairs 2 p (1 - p) show one of either kind."""
    mixed, expected = [], []
    for seed in range(60):
        often, identities = of_unequal_sizes(np.random.default_rng(seed), 100)
        chosen = often[identities[disjoint_pairs(identities, seed=seed)]]
        assert len(chosen) == 50
        mixed.append(np.mean(chosen[:, 0] != chosen[:, 1]))
        expected.append(2 * often.sum() * (~often).sum() / (100 * 99))
    assert np.mean(mixed) == pytest.approx(np.mean(expected), abs=0.02)


# pairs


def people(generator, count, pairs):
    """Impostor pairs of few people, some of whom look like everybody, then one genuine pair of each person."""
    likeness = generator.normal(0, 1.0, size=count)
    first = generator.integers(0, count, size=pairs)
    second = (first + generator.integers(1, count, size=pairs)) % count
    similarity = likeness[first] + likeness[second] + generator.normal(0, 0.5, size=pairs)
    identities = np.vstack([np.column_stack([first, second]), np.repeat(np.arange(count)[:, None], 2, axis=1)])
    return np.append(similarity, generator.normal(6, 1, size=count)), np.arange(pairs + count) >= pairs, identities


def share_accepted(threshold):
    """Exact share of impostor pairs of new people above a threshold: a normal of variance 1 + 1 + 0.25."""
    return norm.sf(threshold / 1.5)


def test_pairs_of_few_people_keep_the_promise_only_where_identities_are_named():
    generator = np.random.default_rng(0)
    by_identity, by_pair = [], []
    for _ in range(300):
        similarity, same, identities = people(generator, 120, 2500)
        by_identity.append(certify_pairs(similarity, same, false_accept=0.05, identities=identities).threshold)
        by_pair.append(certify_pairs(similarity, same, false_accept=0.05).threshold)
    assert np.mean(share_accepted(np.array(by_identity)) > 0.05) <= at_most(0.1, 300)
    assert np.mean(share_accepted(np.array(by_pair)) > 0.05) > 0.3


def test_people_with_many_images_who_look_like_everybody_break_no_promise():
    """A pair with such a person, 1 - .8 ** 2 of the pairs, is more similar by 2."""
    broken = []
    for seed in range(300):
        generator = np.random.default_rng(seed)
        often, impostors = of_unequal_sizes(generator, 150)
        similarity = generator.normal(2.0 * often[impostors].any(axis=1))
        identities = np.vstack([impostors, np.repeat(np.arange(150)[:, None], 2, axis=1)])
        same, similarity = np.arange(len(identities)) >= len(impostors), np.append(similarity, np.full(150, 9.0))
        limit = certify_pairs(similarity, same, false_accept=0.1, identities=identities, seed=seed).threshold
        broken.append(0.36 * norm.sf(limit - 2) + 0.64 * norm.sf(limit) > 0.1)
    assert np.mean(broken) <= at_most(0.1, 300)


@pytest.mark.parametrize("missing", [None, np.nan, 7])
def test_an_identity_that_is_missing_is_named(missing):
    identities = np.array([["a", "b"], ["c", missing]], dtype=object)
    with pytest.raises(ValueError, match=rf"identities holds values of {type(missing).__name__}, str; .* none missing"):
        certify_pairs([0.1, 0.2], [0, 0], false_accept=0.1, identities=identities)
    with pytest.raises(ValueError, match="identities: entry 3 is not finite"):
        certify_pairs([0.1, 0.2], [0, 0], false_accept=0.1, identities=[[1, 2], [3, np.nan]])


def test_a_pair_certificate_says_what_its_decisions_are_worth():
    generator = np.random.default_rng(1)
    same = np.arange(6000) < 2000
    certificate = certify_pairs(generator.normal(3.0 * same), same, false_accept=0.01)
    low, high = certificate.false_reject_range
    rejected = norm.cdf(certificate.threshold - 3)
    assert low < rejected < high
    assert low < certificate.false_reject < high
    assert certificate.accepts([certificate.threshold, certificate.threshold + 1e-9]).tolist() == [False, True]
    for prior in (0.5, 0.01):
        true = prior * (1 - rejected) / (prior * (1 - rejected) + (1 - prior) * norm.sf(certificate.threshold))
        assert 0.5 * true < certificate.precision(prior) < true
    assert certificate.unit == "pair"


def test_rejected_pairs_are_counted_by_hand_once_for_each_identity():
    impostors, people = np.arange(300.0), np.arange(20)
    threshold = 300 - 1 - tolerance_limit(impostors, share=0.05, confidence=0.9).allowed
    genuine = np.append([threshold, threshold - 1, 0], np.full(17, threshold + 0.5))  # three are rejected
    similarity, same = np.concatenate([impostors, genuine, genuine]), np.arange(340) >= 300
    identities = np.vstack([1000 + np.arange(600).reshape(300, 2), *2 * [np.stack([people, people], axis=1)]])
    certificate = certify_pairs(similarity, same, false_accept=0.05, identities=identities)
    assert (certificate.threshold, certificate.genuine, certificate.false_reject) == (threshold, 20, 3 / 20)
    expected = beta.ppf(0.1, 3, 18), beta.ppf(0.9, 4, 17)
    assert certificate.false_reject_range == pytest.approx(expected)


def test_identities_that_contradict_the_truth_are_refused():
    with pytest.raises(ValueError, match="pair 1 is of 'a' and 'a', but `same` says False"):
        certify_pairs([0.1, 0.2], [0, 0], false_accept=0.1, identities=[["a", "b"], ["a", "a"]])


def test_both_kinds_of_pairs_are_needed():
    with pytest.raises(CertificateError, match="0 pairs of one identity and 300 of two"):
        certify_pairs(np.arange(300), np.zeros(300), false_accept=0.01)


# strangers


def test_strangers_are_answered_as_seldom_as_promised():
    generator = np.random.default_rng(2)
    broken = []
    for _ in range(1000):
        certificate = certify_strangers(generator.random(50), generator.random(300), false_accept=0.05)
        broken.append(certificate.threshold > 0.05)
    assert np.mean(broken) <= at_most(0.1, 1000)


def test_what_is_as_doubtful_as_the_threshold_is_not_answered():
    doubts = np.arange(300.0)
    certificate = certify_strangers(doubts, doubts, false_accept=0.05)
    allowed = tolerance_limit(doubts, share=0.05, confidence=0.9).allowed
    assert certificate.threshold == allowed
    assert certificate.answers([allowed - 1, allowed]).tolist() == [True, False]
    assert certificate.coverage == allowed / 300


def test_several_images_of_a_stranger_count_once_where_the_strangers_are_named():
    generator = np.random.default_rng(3)
    named, unnamed = [], []
    for _ in range(400):
        doubts = np.repeat(generator.random(60), 10)
        groups = np.repeat(np.arange(60), 10)
        named.append(certify_strangers([0.5], doubts, false_accept=0.1, groups=groups).threshold > 0.1)
        unnamed.append(certify_strangers([0.5], doubts, false_accept=0.1).threshold > 0.1)
    assert np.mean(named) <= at_most(0.1, 400)
    assert np.mean(unnamed) > at_most(0.1, 400)


def test_identification_rates_are_the_shares_counted_by_hand():
    generator = np.random.default_rng(4)
    doubt, right, strangers = generator.random(40).round(1), generator.random(40) < 0.7, generator.random(30).round(1)
    fpir, fnir = identification_rates(doubt, right, strangers)
    levels = [-np.inf, *np.unique([*doubt, *strangers])]
    assert fpir.tolist() == [float(np.mean(strangers <= level)) for level in levels]
    assert fnir == pytest.approx([1 - np.mean(right & (doubt <= level)) for level in levels])
    allowed = [level for level in levels if np.mean(strangers <= level) <= 0.2]
    expected = min(1 - np.mean(right & (doubt <= level)) for level in allowed)
    assert fnir_at_fpir(doubt, right, strangers, fpir=0.2) == pytest.approx(expected)


# batches


def answers(generator, count):
    """Doubts and truth of answers, 30 % wrong, the doubts rounded so that they tie."""
    wrong = generator.random(count) < 0.3
    return np.round(generator.normal(1.5 * wrong), 1), ~wrong


def false_share(accepted, right):
    return float((accepted & ~right).sum() / max(accepted.sum(), 1))


def test_p_values_and_e_values_by_their_definitions():
    generator = np.random.default_rng(14)
    doubt, calibrated = generator.integers(0, 6, 9).astype(float), generator.integers(0, 6, 12).astype(float)
    wrong = generator.random(12) < 0.5
    as_sure = [sum(wrong & (calibrated <= value)) for value in doubt]
    chosen = select_matches(doubt, (calibrated, ~wrong), fdr=0.5)
    assert chosen.p_values == pytest.approx([(1 + count) / 13 for count in as_sure])
    gains = [(t, 13 / (1 + sum(wrong & (calibrated <= t)))) for t in [*doubt, *calibrated]]
    expected = [np.mean([gain * (value <= t) for t, gain in gains]) for value in doubt]
    assert match_e_values(doubt, (calibrated, ~wrong)) == pytest.approx(expected)


@pytest.mark.parametrize(("fdr", "named", "accepted"), [(0.05, False, 4), (0.1, True, 0), (0.11, True, 4)])
def test_answers_that_come_together_must_pass_by_more(fdr, named, accepted):
    """Four p-values of .05; 1 + 1/2 + 1/3 + 1/4 = 2.08 times that is asked of a batch of one source."""
    calibration = np.arange(99.0), np.arange(99) < 50
    groups = np.zeros(4, dtype=int) if named else None
    assert select_matches([53.0] * 4, calibration, fdr=fdr, batch_groups=groups).accepted.sum() == accepted


def test_a_batch_has_as_few_wrong_matches_as_promised_on_average():
    generator = np.random.default_rng(5)
    shares, sizes = [], []
    for _ in range(1000):
        doubt, right = answers(generator, 60)
        chosen = select_matches(doubt, answers(generator, 300), fdr=0.1)
        shares.append(false_share(chosen.accepted, right))
        sizes.append(chosen.accepted.sum())
    assert np.mean(shares) <= 0.1 + 3.1 * np.std(shares) / np.sqrt(1000)
    assert np.mean(sizes) > 15


def test_a_level_picked_after_a_look_costs_nothing_with_e_values():
    generator = np.random.default_rng(6)
    levels = (0.02, 0.05, 0.1, 0.2, 0.4)
    worst_by_e, worst_by_p = [], []
    for _ in range(600):
        doubt, right = answers(generator, 40)
        calibration = answers(generator, 200)
        e_values = match_e_values(doubt, calibration)
        by_e = [false_share(select_by_e_values(e_values, fdr=level), right) / level for level in levels]
        by_p = [false_share(select_matches(doubt, calibration, fdr=level).accepted, right) / level for level in levels]
        worst_by_e.append(max(by_e))
        worst_by_p.append(max(by_p))
    assert np.mean(worst_by_e) <= 1
    assert np.mean(worst_by_p) > 1


def test_e_values_of_wrong_answers_are_at_most_one_on_average():
    generator = np.random.default_rng(7)
    totals = []
    for _ in range(1500):
        doubt, right = answers(generator, 1)
        totals.append(float(match_e_values(doubt, answers(generator, 50))[0]) * (not right[0]))
    assert np.mean(totals) <= 1 + 3.1 * np.std(totals) / np.sqrt(1500)


def test_e_values_count_a_burst_once_and_refuse_a_batch_of_bursts():
    generator = np.random.default_rng(13)
    totals = {True: [], False: []}
    for _ in range(1500):
        doubt, right, _ = burst_answers(generator, 1, 1)
        *calibration, groups = burst_answers(generator, 10, 20)
        for named in totals:
            e_value = match_e_values(doubt, tuple(calibration), groups=groups if named else None)[0]
            totals[named].append(float(e_value) * (not right[0]))
    assert np.mean(totals[True]) <= 1 + 3.1 * np.std(totals[True]) / np.sqrt(1500)
    assert np.mean(totals[False]) > 1.5
    with pytest.raises(ValueError, match="share a group"):
        match_e_values([0.1, 0.2], tuple(calibration), batch_groups=["walk", "walk"])


def test_nothing_is_accepted_where_calibration_is_all_wrong():
    assert not select_matches([40.0, 60.0], (np.arange(100), np.zeros(100)), fdr=0.2).accepted.any()


# sets


def classified(generator, count):
    """Doubts (N, 3) of each class; class 2 is the hardest and the rarest."""
    labels = generator.choice(3, size=count, p=[0.6, 0.3, 0.1])
    doubts = generator.random((count, 3)) + 0.3
    doubts[np.arange(count), labels] = generator.random(count) * np.array([0.5, 0.8, 1.2])[labels]
    return doubts, labels


def test_sets_hold_the_right_class_as_often_as_promised():
    generator = np.random.default_rng(8)
    held, by_class = [], []
    for _ in range(300):
        doubts, labels = classified(generator, 200)
        new, truth = classified(generator, 200)
        rows = np.arange(200)
        held.append(coverage_sets(doubts, labels, miss=0.1).members(new)[rows, truth].mean())
        own = coverage_sets(doubts, labels, miss=0.1, per_class=True).members(new)[rows, truth]
        by_class.append(own[truth == 2].mean())
    assert np.mean(held) == pytest.approx(0.9, abs=0.01)
    assert np.mean(by_class) >= 0.9 - 3.1 * np.std(by_class) / np.sqrt(300)
    # the promise over all queries is none for the hardest class
    doubts, labels = classified(generator, 20_000)
    marginal = coverage_sets(doubts, labels, miss=0.1).members(doubts)[np.arange(20_000), labels]
    assert marginal[labels == 2].mean() < 0.8


def test_a_class_with_too_few_calibration_queries_is_in_every_set():
    doubts, labels = classified(np.random.default_rng(9), 60)
    labels[labels == 2] = 0
    labels[:8] = 2  # 8 < 1 / 0.1 - 1
    sets = coverage_sets(doubts, labels, miss=0.1, per_class=True)
    assert np.isinf(sets.thresholds[2])
    assert sets.members(np.full((1, 3), 1e9)).tolist() == [[False, False, True]]


@pytest.mark.parametrize(
    ("doubts", "labels", "match"),
    [
        (np.zeros((4, 2)), [0, 1, 2, 0], "labels go up to 2"),
        (np.zeros(4), [0, 1, 1, 0], r"shape \(4,\)"),
        (np.full((2, 2), np.nan), [0, 1], "not finite"),
    ],
)
def test_sets_refuse_what_they_cannot_use(doubts, labels, match):
    with pytest.raises(ValueError, match=match):
        coverage_sets(doubts, labels)


def bursts(generator, count, each):
    """Doubts of the right class (N, 2) of bursts, whose queries are alike, and their groups."""
    groups = np.repeat(np.arange(count), each)
    true = (generator.random(count)[groups] + 0.05 * generator.random(len(groups)))[:, None]
    return np.hstack([true, np.full_like(true, 9.0)]), np.zeros(len(groups), dtype=int), groups


def test_sets_of_groups_hold_the_class_of_a_query_of_a_new_group():
    generator = np.random.default_rng(11)
    held = []
    for _ in range(400):
        sizes = generator.integers(1, 30, 20)
        doubts, labels, groups = bursts(generator, 20, sizes)
        new, truth, _ = bursts(generator, 500, 1)
        sets = coverage_sets(doubts, labels, miss=0.1, groups=groups)
        held.append(sets.members(new)[np.arange(500), truth].mean())
    assert np.mean(held) >= 0.9 - 3.1 * np.std(held) / 20
    doubts, labels, _ = bursts(generator, 200, 1)
    alone = coverage_sets(doubts, labels, miss=0.1, groups=np.arange(200))
    assert np.array_equal(alone.thresholds, coverage_sets(doubts, labels, miss=0.1).thresholds)


def burst_answers(generator, count, each):
    """Doubts and truth of answers in bursts that are right or wrong together, and their groups."""
    groups = np.repeat(np.arange(count), each)
    wrong = generator.random(count) < 0.3
    doubt = generator.normal(1.5 * wrong)[groups] + 0.1 * generator.normal(size=count * each)
    return doubt, ~wrong[groups], groups


def test_a_batch_of_bursts_has_as_few_wrong_matches_as_promised():
    generator = np.random.default_rng(12)
    shares, sizes = ({True: [], False: []} for _ in range(2))
    for _ in range(600):
        doubt, right, batch_groups = burst_answers(generator, 6, 10)
        *calibration, groups = burst_answers(generator, 100, 3)
        for named in shares:
            options = {"groups": groups, "batch_groups": batch_groups} if named else {}
            accepted = select_matches(doubt, tuple(calibration), fdr=0.25, **options).accepted
            shares[named].append(false_share(accepted, right))
            sizes[named].append(accepted.sum())
    assert np.mean(shares[True]) <= 0.25 + 3.1 * np.std(shares[True]) / np.sqrt(600)
    assert np.mean(shares[True]) < np.mean(shares[False])
    assert 5 < np.mean(sizes[True]) < np.mean(sizes[False])
    doubt, right = answers(generator, 100)
    alone = select_matches(doubt, (doubt, right), fdr=0.1, groups=np.arange(100), batch_groups=np.arange(100))
    assert np.array_equal(alone.p_values, select_matches(doubt, (doubt, right), fdr=0.1).p_values)
