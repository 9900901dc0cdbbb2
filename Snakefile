"""ProbMetric: data -> training -> posterior -> embeddings -> metrics -> MLflow, tables, figures and one HTML page.

`snakemake` builds the experiments listed in params.yaml; another selection is
`snakemake --config experiments=smoke` or `--config experiments='[demo,smoke]'`.
"""

from snakemake.utils import min_version

min_version("9.13")


configfile: "params.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/runs.smk"
include: "workflow/rules/reports.smk"


localrules:
    all,
    prepare,
    report,
    track,


rule all:
    default_target: True
    input:
        collect("reports/{experiment}/index.html", experiment=EXPERIMENTS),
        collect(
            "reports/{experiment}/table.{format}",
            experiment=EXPERIMENTS,
            format=["md", "csv", "tex"],
        ),
        collect("state/tracked/{experiment}.json", experiment=EXPERIMENTS),


onstart:
    start()


onsuccess:
    finish()


onerror:
    stop()
