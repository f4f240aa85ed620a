"""The words that tables head their columns with, explained once; headers link here."""

from __future__ import annotations

from typing import NamedTuple

from fdn.report.tables import REGION_COLUMNS


class Term(NamedTuple):
    """A word of the site: its anchor, its name, the headers that mean it, and what it means."""

    anchor: str
    name: str
    headers: tuple[str, ...]
    words: str


def _pair(text: str) -> tuple[str, ...]:
    return tuple(f"{text}, {region}" for region in ("ID", "OOD"))


TERMS = (
    Term("id", "ID, OOD", ("Region",), "*ID* (in distribution) is inside the band of inputs the models were trained "
         "in, *OOD* outside it. Toy tasks: |x| at most 1; real sets: the 20–80 % band of one input."),
    Term("var", "Var", ("Var", *_pair("Var"), "ΔVar ↑", "ΔVar"), "The variance of a model's *K* draws at a test "
         "point. ΔVar is its OOD mean less its ID mean: larger is a stronger reaction to the shift."),
    Term("mse", "MSE of one draw", ("MSE of one draw", *_pair("MSE of one draw"), "MSE, ID", "ΔMSE ↓", "ΔMSE"),
         "The squared error of a single draw, averaged over the draws; it is Var plus the squared error of the "
         "predictive mean. ΔMSE is its OOD mean less its ID mean."),
    Term("mean-error", "Squared error of the mean",
         ("squared error of the mean", *_pair("squared error of the mean"), "error of the mean, ID"),
         "The squared error of the mean of the draws, what one would predict with; corrected for Var / *K*, the "
         "chance error of a mean of *K* draws, and so it can be slightly negative."),
    Term("rho", "ρ", ("ρ", "ρ(Var, MSE)", "ρ(Var, Bias²)"), "Spearman's rank correlation of Var and MSE over all test "
         "points: 1 where the errors are ordered as the variances are. Partly built in, since MSE contains Var."),
    Term("a-b", "a, b", ("a", "b", "b′ = b − 1"), "Intercept and slope of the least-squares fit MSE = a + b Var "
         "over all test points. a = 0, b = 1: the variance is as large as the error. b > 1: it is too small."),
    Term("aurc", "AURC", ("AURC ↓", "AURC"), "Area under the risk–coverage curve: the mean MSE of the most confident "
         "share of the points (smallest Var first), averaged over all shares. Lower is better; it rewards small errors "
         "and a good order of them alike."),
    Term("crps", "CRPS", ("CRPS", *_pair("CRPS"), "CRPS, ID", "ΔCRPS ↓", "ΔCRPS"), "Continuous ranked probability "
         "score, a distance between the distribution of the draws and the target, in the target's unit. ΔCRPS is its "
         "OOD mean less its ID mean."),
    Term("nll", "NLL", ("NLL", *_pair("NLL")), "Negative log density of the target under the mixture of Gaussians "
         "around the draws, of the likelihood's noise variance."),
    Term("coverage", "Coverage, width",
         tuple(head for name in ("coverage_90", "width_90")
               for head in (REGION_COLUMNS[name], *_pair(REGION_COLUMNS[name]))),
         "The share of targets inside the central 90 % of the draws, which should be 0.9, and how wide that is."),
    Term("place", "Place", ("Place",), "The share of our seeds below the published value, equal ones counted half: "
         "0 is below all seeds, 1 above all."),
    Term("inside", "Inside, outside", ("In 5–95 %", "In min–max", "Inside", "Outside"),
         "A published number is *inside 5-95 %* if, give or take half a unit of its last digit, it lies between these "
         "quantiles of our seeds; *inside min-max* if between the smallest and the largest; else *outside*."),
    Term("by-chance", "By chance", ("By chance",), "The share that would be inside if the published run were simply "
         "one more of *n* seeds: (*n* − 1) / (*n* + 1) between the ends, 0.9 times that between the quantiles. With 3 "
         "seeds half of all numbers would be outside by chance alone."),
    Term("verdict", "Verdict", ("Verdict", "Conclusion"), "Of a published number: *inside 5-95 %*, *inside min-max* or "
         "*outside*, as above. Of a statement of the paper: whether it *holds* by our criterion, by the share of seeds "
         "that meet it; [the page of statements](data/claims/README.md) says which share a statement needs."),
)  # fmt: skip

ANCHORS = {header: term.anchor for term in TERMS for header in term.headers}
