"""What does the graph of a trained run do? Errors with and without it, and how hard each term pulls.

    python -m manigraph.experiments.graph_use RUN [RUN ...]

If refinement brought something that the features did not hold, the answers through the graph would be better
than those of the nearest class centre, which knows the features alone. And a term whose gradient is a
thousandth of another's does not form the features.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

import torch
import tyro
from torch import Tensor

from manigraph.build import build
from manigraph.contract import StepContext
from manigraph.errors import UserError
from manigraph.experiments.grid import results_text
from manigraph.functional import class_centres, nearest_centre
from manigraph.inference.manifold import manifold_view, own_class_share
from manigraph.nn import load_trained_state
from manigraph.nn.memory import trained_state
from manigraph.options import parse
from manigraph.runs import RunDirectory, provenance, write_bytes
from manigraph.trained import stored_config, stored_data, trained_algorithm

BATCHES = 20


@dataclass(frozen=True)
class GraphUse:
    """What was found in one run; errors in per cent of the test images."""

    run: str
    error: float
    """Of the run's answers."""
    error_before: float
    """Of its linear layer on features that did not go through the graph."""
    error_of_centres: float
    """Of the nearest centre of the prototypes, again without the graph."""
    agreement: float
    """Share of the images for which the run and the nearest centre answer the same."""
    own_class_attention: float
    """Of an image, to the prototypes of its true class."""
    change: float
    """|f̂ - f| by |f|, mean."""
    gradients: dict[str, float]
    """Length of each weighted term's gradient with respect to the backbone, mean over batches."""


def graph_use(run: RunDirectory) -> GraphUse:
    """Measure a run with a graph."""
    view = manifold_view(run, "test")
    graph, predicted_before = view.graph, view.predicted_before
    if graph is None or predicted_before is None:
        raise UserError(f"the run '{run.path}' has no graph: name runs of manifold_graph")
    centres = class_centres(graph.prototypes, len(view.trained.class_names))
    nearest = nearest_centre(view.features, centres)

    def error(predicted: Tensor) -> float:
        return round(100 * (predicted != view.classes).double().mean().item(), 2)

    change = (graph.refined - view.features).norm(dim=1) / view.features.norm(dim=1)
    return GraphUse(
        run=run.path.resolve().name,
        error=error(view.predicted),
        error_before=error(predicted_before),
        error_of_centres=error(nearest),
        agreement=round((nearest == view.predicted).double().mean().item(), 4),
        own_class_attention=round(own_class_share(graph.image_attention, view.classes, graph.classes), 4),
        change=round(change.mean().item(), 4),
        gradients={name: float(f"{norm:.3g}") for name, norm in gradient_norms(run).items()},
    )


def gradient_norms(run: RunDirectory) -> Mapping[str, float]:
    """‖∇ of each weighted term‖ over the backbone's weights, as in a last step; mean over batches."""
    config, data = stored_config(run), stored_data(run)
    with torch.random.fork_rng():
        job = build(config)
        algorithm = job.trainer.algorithm
        weights = trained_state(trained_algorithm(run, config, data.input_shape, len(data.class_names)))
        load_trained_state(algorithm, weights)
        algorithm.train()
        steps = config.training.steps
        context = StepContext(steps - 1, steps, job.trainer.generator)
        parameters = [p for p in algorithm.model.backbone.parameters() if p.requires_grad]
        norms: dict[str, list[float]] = {}
        for _ in range(BATCHES):
            for name, term in algorithm.training_step(next(job.batches), context).terms.items():
                norms.setdefault(name, []).append(_norm(term, parameters))
    return {name: fmean(values) for name, values in norms.items()}


def _norm(term: Tensor, parameters: Sequence[Tensor]) -> float:
    """0 of a term that is off, or does not reach the backbone."""
    if not term.requires_grad:
        return 0.0
    gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
    return torch.nn.utils.get_total_norm([g for g in gradients if g is not None]).item()


def table(found: Iterable[GraphUse]) -> str:
    """As in docs/results.md."""
    lines = [
        "| run | error % | no graph | nearest centre | answers alike | attention to own class | change | "
        "gradients |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for use in found:
        gradients = ", ".join(f"{name} {norm:g}" for name, norm in use.gradients.items())
        lines.append(
            f"| {use.run} | {use.error:.2f} | {use.error_before:.2f} | {use.error_of_centres:.2f} | "
            f"{use.agreement:.1%} | {use.own_class_attention:.1%} | {use.change:.2f} | {gradients} |"
        )
    return "\n".join(lines)


@dataclass(frozen=True)
class GraphUseExperiment:
    """Measure what the graphs of trained runs do."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories of manifold_graph."""
    results: Path = Path("results/graph-use.json")
    """Results file, written anew."""


def main(arguments: Sequence[str]) -> None:
    """Measure runs, and write what was found."""
    options: GraphUseExperiment = parse(
        GraphUseExperiment, arguments, program="python -m manigraph.experiments.graph_use"
    )
    found = [graph_use(RunDirectory.open(path)) for path in options.runs]
    names = [path.resolve().name for path in options.runs]
    head = provenance() | {"command": ["python", "-m", "manigraph.experiments.graph_use", *names]}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(options.results, results_text(head, found).encode())
    print(table(found))


if __name__ == "__main__":
    main(sys.argv[1:])
