"""ProbMetric: data -> training -> posterior -> embeddings -> metrics -> MLflow, tables, figures and one HTML page.

`snakemake` builds the experiments listed in params.yaml; another selection is
`snakemake --config experiments=smoke` or `--config experiments='[demo,smoke]'`.
"""

from probmetric.errors import ProbMetricError
from probmetric.io import read_yaml
from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.13")

try:
    read_yaml("params.yaml")  # names the line that is no YAML; `configfile` does not
except ProbMetricError as error:
    raise WorkflowError(str(error)) from None


configfile: "params.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/run.smk"
include: "workflow/rules/report.smk"


localrules:
    all,
    prepare,
    report,
    track,


rule all:
    default_target: True
    input:
        collect(MADE, run=PLAN.runs if PLAN else []),
        collect("reports/{experiment}/index.html", experiment=EXPERIMENTS),
        collect("state/tracked/{experiment}.json", experiment=EXPERIMENTS),


onstart:
    hold_plans()


onsuccess:
    if EXPERIMENTS:
        tell(closing_summary(PLAN))


onerror:
    tell(failure_summary(PLAN, BEGAN))
    tell(partial_reports(PLAN))
