"""The paper's sentences, each with a criterion that numbers can meet or miss: what they are, and whether they hold."""

from fdn.report.claims.facts import FACTS, Evidence, Fact
from fdn.report.claims.judging import findings, overall, published_frame, seed_frames, summary
from fdn.report.claims.rendering import page, write
from fdn.report.claims.statements import CLAIMS, FDN, OTHERS, Claim, variant
