"""`probmetric`: one thin command per step of the workflow. Parses, calls, prints."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmetric import __version__
from probmetric.config import Params, load
from probmetric.errors import OUT_OF_MEMORY, ProbMetricError, is_out_of_memory
from probmetric.io import FileError, present, read_problem
from probmetric.launch import Place, take_place
from probmetric.privacy import switch_telemetry_off

if TYPE_CHECKING:
    from probmetric.planning.plans import ReportPlan, RunPlan
    from probmetric.reporting.experiment import ReportContext

EXIT_CONFIG = 2
PARAMS = Path("params.yaml")
REPORTS = Path("reports")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors meant for people are printed as one paragraph, not as a traceback."""
    options = _parser().parse_args(arguments)
    switch_telemetry_off()
    logging.basicConfig(format="%(message)s", force=True)
    logging.getLogger("probmetric").setLevel(logging.INFO)
    try:
        options.run_command(options)
    except ProbMetricError as error:
        print(f"probmetric {options.command}: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print(f"probmetric {options.command}: {OUT_OF_MEMORY}", file=sys.stderr)
        return EXIT_CONFIG
    except BrokenPipeError:
        sys.stderr.close()
    except OSError as error:
        if error.filename is None:
            raise
        print(f"probmetric {options.command}: {read_problem(error.filename, error)}", file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on.", file=sys.stderr)
        return 130
    return 0


# ---- commands ---------------------------------------------------------------------------------------------------


def _prepare(options: argparse.Namespace) -> None:
    from probmetric.planning.declared import prepare

    folder = prepare(_params(), options.dataset, output=options.output, raw=options.raw, progress=True)
    _copy_digest(folder, options.digest)


def _noise(options: argparse.Namespace) -> None:
    from probmetric.data import add_noise
    from probmetric.run_names import LabelNoise, split_data_name

    folder = options.prepared or Path(_params().data.prepared)
    dataset, text = split_data_name(options.name)
    noise = LabelNoise.parse(text)
    add_noise(folder / dataset, folder / options.name, rate=noise.rate, kind=noise.kind, seed=noise.seed)
    _copy_digest(folder / options.name, options.digest)


def _copy_digest(folder: Path, target: Path | None) -> None:
    """Write the prepared folder's digest to `target` too: the file by which later DVC stages know the data."""
    from probmetric.io import write_text

    if target is not None:
        write_text(target, (folder / "digest").read_text(encoding="utf-8"))


def _doctor(options: argparse.Namespace) -> None:
    from probmetric.data import doctor

    folders = options.folders or sorted(path.parent for path in Path("data/prepared").glob("*/manifest.parquet"))
    if not folders:
        raise FileError("data/prepared holds no prepared dataset; run `dvc repro prepare` first.")
    findings = {folder: doctor(folder) for folder in folders}
    for folder, found in findings.items():
        print(f"{folder}: " + ("healthy" if not found else f"{len(found)} finding(s)"))
        for finding in found:
            print(f"  - {finding}")
    if any(findings.values()):
        raise FileError("some datasets are not healthy; see above.")


def _data_ensure(options: argparse.Namespace) -> None:
    from probmetric.planning.declared import ensure
    from probmetric.planning.plans import DataPlan

    ensure(DataPlan.read(options.plan).params if options.plan else _params(), options.name)


def _data_status(options: argparse.Namespace) -> None:
    from probmetric.data.status import format_status
    from probmetric.planning.declared import status

    print(format_status(status(_params())))


def _data_card(options: argparse.Namespace) -> None:
    from probmetric.data.card import write_card

    for path in write_card(Path(_params().data.prepared) / options.name, options.output, options.license):
        print(path)


def _train(options: argparse.Namespace) -> None:
    plan = _run_plan(options)
    from probmetric.pipeline import already_made, train

    if already_made(plan, "train"):
        return
    place = _take_place(options, plan)
    train(plan, threads=place.threads(options.threads), place=place)


def _fit_posterior(options: argparse.Namespace) -> None:
    plan = _run_plan(options)
    from probmetric.pipeline import already_made, fit_posterior

    if not already_made(plan, "fit_posterior"):
        fit_posterior(plan, threads=options.threads)


def _embed(options: argparse.Namespace) -> None:
    plan = _run_plan(options)
    from probmetric.pipeline import already_made, embed

    if already_made(plan, "embed"):
        return
    place = _take_place(options, plan)
    embed(plan, threads=place.threads(options.threads), place=place)


def _evaluate(options: argparse.Namespace) -> None:
    plan = _run_plan(options)
    from probmetric.pipeline import already_made, evaluate

    if not already_made(plan, "evaluate"):
        evaluate(plan)


def _make(options: argparse.Namespace) -> None:
    from probmetric.bundle import make
    from probmetric.io import write_json
    from probmetric.planning.bundles import BundlePlan

    plan = BundlePlan.read(options.plan)
    make(plan, threads=options.threads)
    if options.receipt:
        write_json(options.receipt, {"runs": list(plan.runs)})


def _status(options: argparse.Namespace) -> None:
    from probmetric.planning.overview import status_text
    from probmetric.planning.workflow import WorkflowPlan

    names = [options.experiment] if options.experiment else list(_params().experiments)
    config = _params().model_dump(mode="json") | {"experiments": names, "stale": "auto"}
    print(status_text(WorkflowPlan.from_config(config), every=options.all))


def _clean(options: argparse.Namespace) -> None:
    import shutil

    from probmetric.made import superseded

    folders = superseded()
    for folder in folders:
        print(folder)
        if not options.dry_run:
            shutil.rmtree(folder)
    done = "would be removed" if options.dry_run else "removed"
    print(f"{len(folders)} folder(s) with results of earlier settings or code {done}.")


def _aggregate(options: argparse.Namespace) -> None:
    from probmetric.reporting.aggregate import aggregate_experiment

    aggregate_experiment(_report_plan(options))


def _tables(options: argparse.Namespace) -> None:
    from probmetric.reporting.tables import write_tables

    write_tables(_report(options))


def _figure(options: argparse.Namespace) -> None:
    from probmetric.reporting.figures import draw

    draw(options.figure, _report(options))


def _figures(options: argparse.Namespace) -> None:
    from probmetric.reporting.figures import draw_all

    draw_all(_report(options))


def _theory(options: argparse.Namespace) -> None:
    from probmetric.reporting.theory import write_theory

    for path in write_theory(options.output):
        print(path)


def _publish(options: argparse.Namespace) -> None:
    from probmetric.reporting.site import write_site

    print(write_site(REPORTS, options.output))


def _html(options: argparse.Namespace) -> None:
    from probmetric.planning.staleness import report_state
    from probmetric.reporting.html import write_report
    from probmetric.reporting.record import sign

    plan = _report_plan(options)
    if options.partial:
        _aggregate(options)
        _tables(options)
        _figures(options)
    write_report(_report(options))
    sign(plan.experiment, report_state(plan, plan.judge()))


def _track(options: argparse.Namespace) -> None:
    from probmetric.tracking import track

    plan, report = _report_plan(options), _report(options)
    receipt = track(
        plan.experiment,
        report.runs,
        report.folder,
        store_uri=plan.tracking["store"],
        artifact_root=plan.tracking["artifacts"],
    )
    if options.receipt:
        from probmetric.io import write_json

        write_json(options.receipt, receipt)


def _ui(options: argparse.Namespace) -> None:
    from probmetric.tracking import ui_command

    tracking = _params().tracking
    command = ui_command(tracking.store, options.port, tracking.artifacts)
    address = f"http://127.0.0.1:{options.port}/#/experiments?workflowType=machine_learning"
    print(f"MLflow UI: {address} (Ctrl-C stops it)", file=sys.stderr)
    os.execvp(command[0], command)  # the server takes this process over


def _experiments(options: argparse.Namespace) -> None:
    from probmetric.planning.overview import experiment_overview

    print(experiment_overview(_params()))


def _init(options: argparse.Namespace) -> None:
    from probmetric.planning.own_data import init

    _params()
    print(init(options.data, options.name, split=options.split, options={"on_error": options.on_error}))


def _export(options: argparse.Namespace) -> None:
    from probmetric.serving.commands import export

    load_named(options.plugin)
    print(export(options.run, options.place, options.license))


def _index(options: argparse.Namespace) -> None:
    from probmetric.serving.commands import index

    load_named(options.plugin)
    print(index(options.model, options.images, options.gallery, options.splits, options.on_error, options.remove))


def _vectors(options: argparse.Namespace) -> None:
    from probmetric.serving.commands import vectors

    load_named(options.plugin)
    chosen = {"splits": options.splits, "on_error": options.on_error}
    print(vectors(options.model, options.images, options.output, **chosen))


def _register(options: argparse.Namespace) -> None:
    from probmetric.serving.commands import register

    load_named(options.plugin)
    tracking = _params().tracking
    print(register(options.model, options.name, tracking.store, Path(tracking.artifacts), options.license))


def _search(options: argparse.Namespace) -> None:
    from probmetric.serving.commands import search

    load_named(options.plugin)
    chosen = {name: getattr(options, name) for name in ("risk", "withhold", "strangers", "any_image")}
    print(search(options.model, options.images, splits=options.splits, k=options.k, as_rows=options.csv, **chosen))


def _certify(options: argparse.Namespace) -> None:
    from probmetric.serving.commands import certify

    load_named(options.plugin)
    chosen = {"risk": options.risk, "confidence": options.confidence, "score": options.score}
    print(certify(options.model, options.gallery, options.calibration, **chosen))


def load_named(plugins: Sequence[str]) -> None:
    """Import the modules whose components a model needs."""
    if plugins:
        from probmetric.registry import load_plugins

        load_plugins(plugins)


def _tune(options: argparse.Namespace) -> None:
    from probmetric.planning.runs import every_method
    from probmetric.tuning import cost, load_tuning, report
    from probmetric.tuning.search import Search
    from probmetric.tuning.snakemake import build_study, train_runs

    params = _params()
    search = Search(params, every_method(params), load_tuning(options.search))
    if options.estimate:
        print(cost.estimated(search, options.search, cost.Times.recorded()))
        return
    if search.spec.study:
        report.study(search, options.search)  # a mistake in it is said now, not after hours
    search.run(
        lambda runs: train_runs(runs, params.stale, options.snakemake),
        lambda search: report.write_progress(search, options.search),
    )
    print(report.table(search))
    print(f"Tuned methods, to be named in experiments: {report.write_methods(search, options.search)}")
    if written := report.write_study(search, options.search):
        print(f"Their experiment: {written}", flush=True)
        build_study(written.stem, options.snakemake)


def _certificate(options: argparse.Namespace) -> None:
    from probmetric.pipeline import certify

    print(
        certify(options.run, risk=options.risk, confidence=options.confidence, score=options.score, unit=options.unit)
    )


def _monitor(options: argparse.Namespace) -> None:
    from probmetric.evaluation.certificates import Certificate
    from probmetric.evaluation.monitor import monitored

    report = monitored(
        Certificate.load(options.certificate),
        options.log,
        column=options.column,
        patience=options.patience,
        ordered=not options.unordered,
    )
    print(report.text)
    if report.expired:
        raise FileError(report.advice)


def _list(options: argparse.Namespace) -> None:
    from probmetric.listing import listing
    from probmetric.registry import load_plugins

    load_plugins(_params().plugins if PARAMS.exists() else ())
    print(listing(options.kind, options.name))


def _schema(options: argparse.Namespace) -> None:
    from probmetric.metrics import write_tables
    from probmetric.planning.workflow import write_schemas
    from probmetric.registry import write_catalogue
    from probmetric.reporting.claims.docs import write_tables as write_claims

    pages = {Path("docs/evaluation.md"): write_tables, Path("docs/claims.md"): write_claims}
    tables = [write(page) for page, write in pages.items() if page.is_file()]
    for path in [write_catalogue(), *write_schemas(options.output), *tables]:
        print(path)


# ---- shared by the commands --------------------------------------------------------------------------------------


def _take_place(options: argparse.Namespace, plan: RunPlan) -> Place:
    """Start the processes asked for, or find out which of them this one is."""
    again = [options.command, options.run, "--threads", str(options.threads), "--processes", str(options.processes)]
    return take_place(options.processes, [*again, "--plan", str(plan.write())])


def _params() -> Params:
    if not present(PARAMS):
        raise FileError(
            f"there is no {PARAMS} in {Path.cwd()}; run this command inside a project folder, the one that holds it."
        )
    params: Params = load(Params, PARAMS)
    return params


def _run_plan(options: argparse.Namespace) -> RunPlan:
    """The plan given (as the workflow does); by hand, what params.yaml says of the run now."""
    from probmetric.planning.plans import RunPlan

    if options.plan is not None:
        return RunPlan.read(options.plan)
    from probmetric.planning.runs import find_run

    params = _params()
    return RunPlan.of(find_run(params, options.run), params)


def _report_plan(options: argparse.Namespace) -> ReportPlan:
    """The plan given (as the workflow does); by hand, what params.yaml says of the experiment now."""
    from probmetric.planning.plans import ReportPlan

    if options.plan is not None:
        return ReportPlan.read(options.plan)
    from probmetric.planning.workflow import WorkflowPlan

    config = _params().model_dump(mode="json") | {"experiments": [options.experiment]}
    return WorkflowPlan.from_config(config).report_plan(options.experiment)


def _report(options: argparse.Namespace) -> ReportContext:
    """The report's context: the plan, and what `aggregate` found of its runs."""
    from probmetric.reporting.experiment import ReportContext

    return ReportContext.of(_report_plan(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="probmetric",
        description="Train, compare and use probabilistic image embeddings. "
        "`snakemake --cores all` runs the whole workflow; these are its steps, usable by hand.",
    )
    parser.add_argument("--version", action="version", version=f"probmetric {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, function: Any, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.set_defaults(run_command=function)
        return command

    command = add("prepare", _prepare, "make a prepared dataset (DVC stage prepare@<dataset>)")
    command.add_argument("dataset")
    command.add_argument("--output", type=Path, help="folder to write (default: below data.prepared of params.yaml)")
    command.add_argument("--raw", type=Path, help="folder with the archives (default: data.raw of params.yaml)")
    command.add_argument("--digest", type=Path, help="write the data's digest to this file too")

    command = add("noise", _noise, "make a variant with wrong training labels (DVC stage noise@<dataset>-<noise>)")
    command.add_argument("name", help="glyphs+noise0.2 (uniform), glyphs+nearest0.2, glyphs+nearest0.2s1 (seed 1)")
    command.add_argument("--prepared", type=Path, help="folder of the prepared datasets (default: params.yaml's)")
    command.add_argument("--digest", type=Path, help="write the data's digest to this file too")

    command = add("doctor", _doctor, "check prepared datasets: splits, labels, digests, duplicates")
    command.add_argument("folders", nargs="*", type=Path, help="prepared folders (default: all)")

    data = add("data", None, "prepared data").add_subparsers(dest="data_command", required=True)
    ensure = data.add_parser("ensure", help="make sure a prepared dataset is there, through DVC")
    ensure.add_argument("name", help="glyphs, glyphs+noise0.2, ...")
    ensure.add_argument("--plan", type=Path, help="plan file of the workflow (default: params.yaml)")
    ensure.set_defaults(run_command=_data_ensure)
    status = data.add_parser("status", help="what is present, what is missing, the files expected, the next command")
    status.set_defaults(run_command=_data_status)
    card = data.add_parser("card", help="write a data card (Markdown) and a Croissant file of a prepared dataset")
    card.add_argument("name", help="a prepared dataset: letters_exact, glyphs, ...")
    card.add_argument("--output", type=Path, required=True, help="folder to write README.md and croissant.json to")
    card.add_argument("--license", default="", help="under what terms the images may be used")
    card.set_defaults(run_command=_data_card)

    _add_run_steps(add)
    _add_report_steps(add)
    command = add("make", _make, "make what is not finished of several runs, one after the other")
    command.add_argument("plan", type=Path, help="plan file of the bundle (state/plan/bundles)")
    command.add_argument("--receipt", type=Path, help="JSON file to write when all are finished")
    command.add_argument("--threads", type=int, default=1, help="CPU threads")
    command = add("status", _status, "list an experiment's runs: finished, stale (why), missing")
    command.add_argument("experiment", nargs="?", help="default: those of params.yaml")
    command.add_argument("--all", action="store_true", help="a line for every run, also where there are many")
    command = add("clean", _clean, "remove kept results of earlier settings and code (state/kept)")
    command.add_argument("--dry-run", "-n", action="store_true", help="only list them")
    command = add("list", _list, "list components, or the options of one: losses, views, metrics, sources, ...")
    command.add_argument("kind", help="losses, uncertainties, backbones, views, metrics, scores, figures or sources")
    command.add_argument("name", nargs="?", help="one of them: its options, with defaults and what they take")
    add("experiments", _experiments, "list the experiments with their runs and the data they need")
    _add_serving(add)
    command = add("certificate", _certificate, "certify the answers of a run's own test gallery, from its match record")
    command.add_argument("run", help="an evaluated run: <dataset>/<method>/seed<k>")
    command.add_argument("--risk", type=float, required=True, help="share of wrong answers allowed, e.g. 0.05")
    command.add_argument("--confidence", type=float, default=0.9, help="chance that the promise holds (default: 0.9)")
    command.add_argument("--score", default="", help="what decides (default: P(right); `probmetric list scores`)")
    command.add_argument(
        "--unit", default="auto", choices=["auto", "query", "class"], help="what is drawn independently"
    )
    command = add("monitor", _monitor, "say whether a certificate has expired, from the log of the queries answered")
    command.add_argument("certificate", type=Path, help="certificate.json")
    command.add_argument("log", type=Path, help="CSV of `probmetric search --csv`, in the order of the queries")
    command.add_argument("--column", default="p_right", help="column to watch: p_right, or a doubt (default: p_right)")
    command.add_argument(
        "--unordered",
        action="store_true",
        help="the log is not in the order of the queries (folders list them by class): shuffle it",
    )
    command.add_argument(
        "--patience", type=float, default=100_000, help="clean queries to a false alarm, on average at least"
    )
    command = add("tune", _tune, "search a method's settings on validation data; started again it goes on")
    command.add_argument(
        "--estimate", action="store_true", help="only say what processor time it will take (give it before the name)"
    )
    command.add_argument("search", help="name of a file below workflow/tuning")
    command.add_argument("snakemake", nargs=argparse.REMAINDER, help="options for snakemake, e.g. --profile slurm")
    command = add(
        "schema",
        _schema,
        "write what is generated: components' catalogue, JSON schemas for editors, tables of metrics",
    )
    command.add_argument("--output", type=Path, default=Path("workflow/schemas"))
    return parser


def _add_serving(add: Any) -> None:
    init = add("init", _init, "declare your own images, table or vectors as a dataset, with an experiment")
    init.add_argument("data", type=Path, help="folder with one folder per class; CSV, TSV, Parquet; file of vectors")
    init.add_argument("--name", required=True, help="what dataset and experiment are called")
    init.add_argument("--split", choices=["by_class", "by_image", "by_group"], default="", help="default: by number")
    init.add_argument("--on-error", choices=["raise", "skip"], default="raise", help="what is done with bad images")
    export = add("export", _export, "write a finished run as a model folder that loads anywhere, or as an ONNX file")
    export.add_argument("run", help="a finished run, <dataset>/<method>/seed<k>, or a model folder")
    export.add_argument("place", type=Path, help="model folder to write; or model.onnx, model.pt2 (torch.export)")
    export.add_argument("--license", default="", help="under what terms the model may be used, for its card")
    index = add("index", _index, "make a gallery of images to search in, or add images to it")
    index.add_argument("model", help="a model folder, a finished run, or models:/<name>/<version>")
    index.add_argument("images", nargs="*", type=Path, help="folders with images, files, or a prepared dataset's name")
    index.add_argument("--gallery", type=Path, required=True, help="gallery folder; one that exists grows")
    index.add_argument(
        "--splits", type=_listed, default=(), help="of a prepared dataset, e.g. train,val (default: all)"
    )
    index.add_argument("--on-error", choices=["raise", "skip"], default="raise", help="what is done with bad images")
    index.add_argument("--remove", nargs="+", default=[], metavar="PATH", help="remove these images from the gallery")
    vectors = add("vectors", _vectors, "write embeddings to a Parquet file, for a vector database")
    vectors.add_argument("model", help="a model folder, a finished run, or models:/<name>/<version>")
    vectors.add_argument("images", type=Path, help="a folder with images, or a prepared dataset's name")
    vectors.add_argument("output", type=Path, help="file to write: path, label, split, vector, uncertainty, ...")
    vectors.add_argument("--splits", type=_listed, default=(), help="of a prepared dataset (default: all)")
    vectors.add_argument("--on-error", choices=["raise", "skip"], default="raise", help="what is done with bad images")
    register = add("register", _register, "register a model in MLflow, as models:/<name>/<version>")
    register.add_argument("model", help="a finished run, or a model folder")
    register.add_argument("name", help="what it is called there")
    register.add_argument("--license", default="", help="under what terms the model may be used, for its card")
    command = add("search", _search, "find the images of a gallery nearest to yours, and how sure it is")
    command.add_argument("model", help="a model folder, a finished run, or models:/<name>/<version>")
    command.add_argument(
        "images",
        nargs="+",
        type=Path,
        metavar="[GALLERY] IMAGES",
        help="a gallery folder (without one: the run's own images), then image files or folders with images",
    )
    command.add_argument("-k", type=int, default=5, help="matches per image (default: 5)")
    command.add_argument("--splits", type=_listed, default=("test",), help="of the run's images (default: test)")
    command.add_argument(
        "--withhold", type=float, default=1.0, help="no answer for images less sure than this share, e.g. 0.95"
    )
    command.add_argument("--risk", type=float, help="answer so that at most this share is wrong (needs a certificate)")
    command.add_argument("--strangers", type=float, default=0.0, help="no answer for the farthest, e.g. 0.01")
    command.add_argument(
        "--any-image", action="store_true", help="also answer images that look like none of the gallery"
    )
    command.add_argument("--csv", action="store_true", help="one row per match, for programs")
    certify = add("certify", _certify, "certify how often the answers of a gallery are wrong, from labelled images")
    certify.add_argument("model", help="a model folder, a finished run, or models:/<name>/<version>")
    certify.add_argument("gallery", type=Path, help="gallery folder, whose images have classes")
    certify.add_argument(
        "calibration", type=Path, nargs="?", help="one folder per class with images that are not in the gallery"
    )
    certify.add_argument("--risk", type=float, required=True, help="share of wrong answers allowed, e.g. 0.05")
    certify.add_argument("--confidence", type=float, default=0.9, help="chance that the promise holds (default: 0.9)")
    certify.add_argument("--score", default="", help="what decides (default: P(right))")
    for each in (export, index, vectors, register, command, certify):
        each.add_argument("--plugin", action="append", default=[], help="module whose components the model needs")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _add_run_steps(add: Any) -> None:
    steps = [
        ("train", _train, "train one run's encoder; goes on from its checkpoint after an interruption"),
        ("fit-posterior", _fit_posterior, "fit one run's uncertainty on its trained encoder"),
        ("embed", _embed, "embed validation, test and OOD images of one run"),
        ("evaluate", _evaluate, "measure one run's embeddings"),
    ]
    for name, function, text in steps:
        command = add(name, function, text)
        command.add_argument("run", help="<dataset>[+noise<rate>]/<method>[+key=value...]/seed<k>")
        command.add_argument("--plan", type=Path, help="plan file of the run (default: resolve from params.yaml)")
        if name != "evaluate":
            command.add_argument("--threads", type=int, default=1, help="CPU threads")
        if name in ("train", "embed"):
            command.add_argument("--processes", type=int, default=1, help="processes that share the work, on any nodes")


def _add_report_steps(add: Any) -> None:
    steps = [
        ("aggregate", _aggregate, "collect an experiment's metrics into runs.csv and metrics.json"),
        ("tables", _tables, "write an experiment's tables (Markdown, CSV, LaTeX) and the files of `dvc plots`"),
        ("figures", _figures, "draw every figure of an experiment"),
        ("figure", _figure, "draw one figure of an experiment"),
        ("report", _html, "write an experiment's HTML page"),
        ("track", _track, "bring MLflow up to date with an experiment's results"),
    ]
    for name, function, text in steps:
        command = add(name, function, text)
        command.add_argument("experiment", help="name of a file below workflow/experiments, e.g. demo")
        if name == "figure":
            command.add_argument("figure", help="metric_per_method, learning_curves, ...")
        if name == "track":
            command.add_argument("--receipt", type=Path, help="JSON file that says what was written")
        if name == "report":
            command.add_argument(
                "--partial",
                action="store_true",
                help="collect what is finished, draw, then write the page",
            )
        command.add_argument("--plan", type=Path, help="plan file of the experiment (default: params.yaml)")
    command = add("theory", _theory, "draw the papers' figures that need no training")
    command.add_argument("--output", type=Path, default=REPORTS / "theory")
    command = add("publish", _publish, "collect all pages and the theory figures in a static site")
    command.add_argument("--output", type=Path, default=Path("site"))
    command = add("ui", _ui, "browse the runs in the MLflow UI on this machine")
    command.add_argument("--port", type=int, default=5000)


if __name__ == "__main__":
    sys.exit(main())
