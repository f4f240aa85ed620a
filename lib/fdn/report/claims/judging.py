"""The statements judged: by the published tables, by every one of our seeds, and by their medians."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from fdn.models import BASELINE
from fdn.protocol import PUBLISHED
from fdn.report.checkpoints import kept_at
from fdn.report.claims.facts import FACTS, Evidence
from fdn.report.claims.statements import CLAIMS, SIX, Claim
from fdn.report.findings import listing
from fdn.report.published import DATASETS, load_published, rows_of
from fdn.report.tables import DASH, corrected_mean_error, plain_number

# by how much a claim says: the share of seeds from which on it holds, and down from which it does not
SHARES = {"always": (0.8, 0.2), "often": (0.5, 0.2), "can": (0.5, 0.0), "alike": (0.5, 0.5)}
UNTOLD = 0.2  # share of seeds whose errors of the mean are not above 0 from which on nothing is concluded
NEAR_MEAN = 0.05  # an error less than this share below that of predicting the training mean is called no better
YES_NO = {True: "yes", False: "no", None: DASH}
HOLDS, FAILS, PARTLY, UNMEASURED = "holds", "does not hold", "holds in part", "not measured"


@dataclass(frozen=True)
class Finding:
    """A claim judged for one data set, or a fact."""

    section: str
    kind: str  # of :data:`fdn.report.claims.facts.KINDS`
    said: str  # how much the words say: a key of SHARES; "" of a fact
    words: str
    criterion: str
    dataset: str  # "" if it is about all of them
    published: str  # "yes", "no", or words
    held: int | None  # seeds
    seeds: int
    median: str  # whether the medians over seeds meet the criterion
    numbers: str
    conclusion: str
    checkpoint: str = ""  # where the runs that it speaks of are kept
    remark: str = ""  # what one must know to read the conclusion


def published_frame(dataset: str) -> pd.DataFrame:
    """A published result table: a row per model, a column per metric."""
    return rows_of(load_published(), dataset=dataset).pivot(index="model", columns="metric", values="published")


def seed_frames(metrics: pd.DataFrame, dataset: str, protocol: str = PUBLISHED.label) -> dict[int, pd.DataFrame]:
    """Per seed of an FDN, the frame that claims are put to: a row per model, and per model under changed settings.

    The column mean_error_id is :func:`fdn.report.tables.corrected_mean_error`; TrainingMean, which has no seed, is in
    every frame.
    """
    labels = metrics["protocol"]
    changed = labels.str.startswith(f"{protocol}+")
    chosen = metrics[(metrics["dataset"] == dataset) & ((labels == protocol) | changed)]
    chosen = chosen.assign(
        mean_error_id=corrected_mean_error(chosen, "id"),
        row=chosen["model"] + chosen["protocol"].str.removeprefix(protocol),
    )
    chosen = chosen.set_index(chosen.pop("row").astype(object)).astype({"seed": int}).select_dtypes("number")
    chosen.columns = chosen.columns.astype(object)  # as the index: look-ups are several times faster than in strings
    baseline, others = chosen[chosen.index == BASELINE].head(1), chosen[chosen.index != BASELINE]
    return {int(seed): pd.concat([baseline, runs]) for seed, runs in others.groupby("seed")}


def _joined(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([frame.rename(index=lambda row, d=dataset: f"{d}/{row}") for dataset, frame in frames.items()])


def judge(claim: Claim, dataset: str, theirs: pd.DataFrame, ours: Sequence[pd.DataFrame]) -> Finding:
    """A claim put to the published table and to every seed's frame of a data set.

    That two things are alike is judged by the medians over seeds, since two runs of one model differ by more.
    """
    verdicts = [claim.judge(frame) for frame in ours]
    relevant = [frame for frame, verdict in zip(ours, verdicts) if verdict is not None]
    held, seeds = verdicts.count(True), len(relevant)
    untold = sum(set(claim.models) <= set(frame.index) and not claim.tells(frame) for frame in ours)
    medians = pd.concat(relevant).groupby(level=0).median() if relevant else None
    median = claim.judge(medians) if relevant else None
    numbers, conclusion = f"{held} of {seeds} seeds" if seeds else "", UNMEASURED
    if untold:
        numbers = f"{numbers}; in {untold} more an error is not above 0".removeprefix("; ")
    if seeds and untold <= UNTOLD * (seeds + untold):
        share = float(bool(median)) if claim.said == "alike" else held / seeds
        enough, too_few = SHARES[claim.said]
        conclusion = HOLDS if share >= enough else FAILS if share <= too_few else PARTLY
    easy = conclusion == HOLDS and claim.said == "alike" and "mean_error_id" in claim.metrics
    return Finding(
        claim.section, "result", claim.said, claim.words, claim.criterion, dataset, YES_NO[claim.judge(theirs)],
        held if seeds else None, seeds, YES_NO[median], numbers, conclusion,
        remark=_beside_the_mean(medians) if easy else "",
    )  # fmt: skip


def _beside_the_mean(medians: pd.DataFrame) -> str:
    """Which of the six predict better than the training mean, if most do not: then to be alike says little."""
    if BASELINE not in medians.index:
        return ""
    errors, bar = medians.loc[SIX, "mean_error_id"], medians.at[BASELINE, "mean_error_id"]
    better = errors[errors < (1 - NEAR_MEAN) * bar]
    if len(better) >= len(SIX) / 2:
        return ""
    who = listing([f"{model} ({plain_number(error)})" for model, error in better.items()])
    return (
        f"there {f'only {who}' if who else 'none'} of the six {'are' if len(better) > 1 else 'is'} more than "
        f"{NEAR_MEAN:.0%} below the error of predicting the training mean ({plain_number(bar)})"
    )


def findings(metrics: pd.DataFrame, times: pd.DataFrame | None) -> list[Finding]:
    """Every claim judged for each of its data sets, and every fact, in the order of the paper's sections."""
    ours = {dataset: seed_frames(metrics, dataset) for dataset in DATASETS}
    theirs = {dataset: published_frame(dataset) for dataset in DATASETS}
    found = []
    for claim in CLAIMS:
        if claim.across:
            common = set.intersection(*(set(ours[dataset]) for dataset in claim.datasets))
            frames = [_joined({d: ours[d][seed] for d in claim.datasets}) for seed in sorted(common)]
            printed = _joined({d: theirs[d] for d in claim.datasets})
            found.append(judge(claim, ", ".join(claim.datasets), printed, frames))
        else:
            found += [judge(claim, d, theirs[d], list(ours[d].values())) for d in claim.datasets]
    kept = {(d, mixed): kept_at(metrics, d, mixed) for d in DATASETS for mixed in (False, True)}
    found = [replace(one, checkpoint=kept.get((one.dataset, _names_ensembles(one)), "")) for one in found]
    evidence = Evidence(metrics, times)
    for fact in FACTS:
        verdict, numbers = fact.judge(evidence)
        conclusion = {True: HOLDS, False: FAILS, None: UNMEASURED}[verdict]
        about = fact.section, fact.kind, "", fact.words, fact.criterion
        found.append(Finding(*about, "", fact.published, None, 0, DASH, numbers, conclusion))
    return sorted(found, key=lambda f: (f.section.startswith("Appendix"), f.section != "Abstract", f.section))


def _names_ensembles(finding: Finding) -> bool:
    return "nsemble" in finding.words + finding.criterion or "all six" in finding.criterion


def overall(conclusions: Iterable[str], said: str = "always") -> str:
    """The conclusion over several data sets, of which those count that were measured.

    Where all agree it is theirs; else what is said "often" holds if it does on half of them, what "can" be if it does
    on one, and anything else in part.

    >>> overall(["holds", "not measured"]), overall(["holds", "does not hold"])
    ('holds', 'holds in part')
    >>> overall(["holds", "does not hold"], "often"), overall(["holds", "holds in part", "does not hold"], "can")
    ('holds', 'holds')
    """
    measured = [conclusion for conclusion in conclusions if conclusion != UNMEASURED]
    if len(set(measured)) < 2:
        return measured[0] if measured else UNMEASURED
    enough = {"often": len(measured) / 2, "can": 1}.get(said, len(measured))
    return HOLDS if measured.count(HOLDS) >= enough else PARTLY


def summary(found: Iterable[Finding]) -> str:
    """How many statements hold, hold in part, do not hold or were not measured, in words."""
    conclusions = [verdict(group) for group in by_statement(found).values()]
    kinds = {HOLDS: "hold", PARTLY: "hold in part", FAILS: "do not hold", UNMEASURED: "were not measured"}
    counts = [f"{conclusions.count(kind)} {words}" for kind, words in kinds.items()]
    return f"of {len(conclusions)} statements {', '.join(counts)}"


def verdict(group: Sequence[Finding]) -> str:
    """The conclusion on a statement, from its findings on several data sets."""
    return overall((finding.conclusion for finding in group), group[0].said)


def kind_of(finding: Finding) -> str:
    """What a statement is about, and how much it says if that is less than always."""
    return finding.kind if finding.said in ("", "always") else f"{finding.kind}, {finding.said}"


def by_statement(found: Iterable[Finding]) -> dict[tuple[str, str, str], list[Finding]]:
    """The findings of each statement: (section, words, criterion) to those of its data sets."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in found:
        groups.setdefault((finding.section, finding.words, finding.criterion), []).append(finding)
    return groups
