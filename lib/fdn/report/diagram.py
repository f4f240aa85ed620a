"""The single-layer view of an FDN (paper, Figure "ic-fdnet-layer"), drawn from boxes and arrows."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyBboxPatch

EDGE = "#333333"
ROUND = "round,pad=0,rounding_size=0.08"
GREY, ORANGE, BLUE = "#F2F2F2", "#FBE8CC", "#DCEAF7"

Pair = tuple[float, float]


def _box(ax: Axes, centre: Pair, size: Pair, text: str, colour: str) -> None:
    corner = (centre[0] - size[0] / 2, centre[1] - size[1] / 2)
    look = {"facecolor": colour, "edgecolor": EDGE, "linewidth": 0.9}
    ax.add_patch(FancyBboxPatch(corner, *size, boxstyle=ROUND, **look))
    ax.text(*centre, text, ha="center", va="center", linespacing=1.5)


def _arrow(ax: Axes, start: Pair, end: Pair) -> None:
    style = {"arrowstyle": "-|>", "color": EDGE, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", xy=end, xytext=start, arrowprops=style)


def layer_axes(ax: Axes) -> Axes:
    r"""One FDN layer: the hypernetwork turns s_l and noise into weights, the layer applies them to a_{l-1}.

    (mu, rho) = A_l(s_l), theta_l = mu + (floor + softplus(rho)) eps, a_l = f_l(a_{l-1}; theta_l), with
    s_l = x in IC-FDNet and s_l = a_{l-1} in LP-FDNet. Axes units are inches. Source: Figure 1, section 3.2.
    """
    frame = {"facecolor": "none", "edgecolor": EDGE, "linewidth": 0.9, "linestyle": ":"}
    ax.add_patch(FancyBboxPatch((2.0, 0.85), 4.25, 1.2, boxstyle=ROUND, **frame))
    ax.text(2.12, 1.87, r"weight distribution $q_\phi(\theta_\ell \mid s_\ell)$", va="center")
    _box(ax, (0.85, 1.35), (1.3, 0.7), r"$s_\ell = x$  (IC)" "\n" r"$s_\ell = a_{\ell-1}$  (LP)", GREY)
    _box(ax, (0.85, 0.35), (1.3, 0.4), r"$a_{\ell-1}$", GREY)
    _box(ax, (3.0, 1.35), (1.7, 0.7), "hypernetwork\n" r"$(\mu_\ell, \rho_\ell) = A_\ell(s_\ell)$", ORANGE)
    _box(ax, (5.05, 1.35), (1.95, 0.7), r"$\sigma_\ell = 10^{-3} + \mathrm{softplus}(\rho_\ell)$" "\n"
         r"$(W_\ell, b_\ell) = \theta_\ell = \mu_\ell + \sigma_\ell \odot \varepsilon$", ORANGE)  # fmt: skip
    _box(ax, (5.05, 0.35), (1.95, 0.4), r"layer:  $a_\ell = f_\ell(a_{\ell-1};\, \theta_\ell)$", BLUE)
    ax.add_patch(Circle((5.05, 2.33), 0.15, facecolor="white", edgecolor=EDGE, linewidth=0.9))
    ax.text(5.05, 2.33, r"$\varepsilon$", ha="center", va="center")
    ax.text(5.28, 2.33, r"$\varepsilon \sim \mathcal{N}(0, I)$", va="center")
    ax.text(6.62, 0.35, r"$a_\ell$", va="center")
    _arrow(ax, (1.5, 1.35), (2.15, 1.35))
    _arrow(ax, (3.85, 1.35), (4.075, 1.35))
    _arrow(ax, (5.05, 2.18), (5.05, 1.7))
    _arrow(ax, (5.05, 1.0), (5.05, 0.55))
    ax.text(5.12, 0.72, r"$\theta_\ell$", va="center")
    _arrow(ax, (1.5, 0.35), (4.075, 0.35))
    _arrow(ax, (0.85, 0.55), (0.85, 1.0))
    ax.text(0.92, 0.78, "LP", va="center")
    ax.text(0.85, 2.33, r"$x$", ha="center", va="center")
    _arrow(ax, (0.85, 2.2), (0.85, 1.7))
    ax.text(0.92, 1.95, "IC", va="center")
    _arrow(ax, (6.025, 0.35), (6.58, 0.35))
    ax.set(xlim=(0, 7), ylim=(0.05, 2.55), aspect="equal")
    ax.set_axis_off()
    return ax
