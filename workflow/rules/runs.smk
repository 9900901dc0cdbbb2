"""One run: train the encoder, fit the posterior, embed, evaluate; what finishes a run goes before what starts another.

`exec`: a scheduler's SIGTERM ends the shell at once; in its place, `probmetric` saves its state first.
"""

SPLITS = ["val", "test", "ood", "last"]


rule train:
    input:
        again=again("train"),
        origin=origin,
        digest=run_digests("train"),
        images=training_images,
    output:
        weights="results/{run}/model.safetensors",
        last="results/{run}/model_last.safetensors",
        history="results/{run}/history.csv",
        record="results/{run}/encoder.yaml",
        made="results/{run}/made/train.json",
    log:
        "logs/train/{run}.log",
    benchmark:
        "benchmarks/jobs/train/{run}.tsv"
    conda:
        "../envs/probmetric.yaml"
    threads: 1
    resources:
        gpu=0,
        processes=1,
        mem_mb=megabytes("train"),
        runtime=minutes("train"),
    params:
        plan=plan_file,
    message:
        "Train {wildcards.run}"
    shell:
        "exec probmetric train {wildcards.run} --plan {params.plan:q} --threads {threads}"
        " --processes {resources.processes} > {log} 2>&1"


rule fit_posterior:
    input:
        again=again("fit_posterior"),
        weights=encoder_file("fit_posterior", "model.safetensors"),
        record=encoder_file("fit_posterior", "encoder.yaml"),
        digest=run_digests("fit_posterior"),
    output:
        "results/{run}/posterior.safetensors",
        made="results/{run}/made/fit_posterior.json",
    log:
        "logs/fit_posterior/{run}.log",
    benchmark:
        "benchmarks/jobs/fit_posterior/{run}.tsv"
    priority: 1
    conda:
        "../envs/probmetric.yaml"
    threads: 1
    resources:
        gpu=0,
        mem_mb=megabytes("fit_posterior"),
        runtime=minutes("fit_posterior"),
    params:
        plan=plan_file,
    message:
        "Fit the posterior of {wildcards.run}"
    shell:
        "exec probmetric fit-posterior {wildcards.run} --plan {params.plan:q} --threads {threads} > {log} 2>&1"


rule embed:
    input:
        again=again("embed"),
        weights=encoder_file("embed", "model.safetensors"),
        last=encoder_file("embed", "model_last.safetensors"),
        record=encoder_file("embed", "encoder.yaml"),
        posterior=posterior,
        digest=run_digests("embed"),
    output:
        collect(
            "results/{{run}}/embeddings/{split}.safetensors",
            split=SPLITS,
        ),
        timing="results/{run}/embeddings/timing.json",
        made="results/{run}/made/embed.json",
    log:
        "logs/embed/{run}.log",
    benchmark:
        "benchmarks/jobs/embed/{run}.tsv"
    priority: 2
    conda:
        "../envs/probmetric.yaml"
    threads: 1
    resources:
        gpu=0,
        processes=1,
        mem_mb=megabytes("embed"),
        runtime=minutes("embed"),
    params:
        plan=plan_file,
    message:
        "Embed {wildcards.run}"
    shell:
        "exec probmetric embed {wildcards.run} --plan {params.plan:q} --threads {threads}"
        " --processes {resources.processes} > {log} 2>&1"


rule evaluate:
    input:
        again=again("evaluate"),
        embeddings=run_files(
            "evaluate",
            *(f"embeddings/{split}.safetensors" for split in SPLITS),
            "embeddings/timing.json",
        ),
        record=encoder_file("evaluate", "encoder.yaml"),
        digest=run_digests("evaluate"),
    output:
        metrics="results/{run}/metrics.json",
        curves="results/{run}/curves.json",
        matches="results/{run}/matches.safetensors",
        record="results/{run}/run.yaml",
        made="results/{run}/made/evaluate.json",
    log:
        "logs/evaluate/{run}.log",
    benchmark:
        "benchmarks/jobs/evaluate/{run}.tsv"
    priority: 3
    conda:
        "../envs/probmetric.yaml"
    threads: 1
    resources:
        mem_mb=megabytes("evaluate"),
        runtime=minutes("evaluate"),
    params:
        plan=plan_file,
    message:
        "Evaluate {wildcards.run}"
    shell:
        "OMP_NUM_THREADS={threads} exec probmetric evaluate {wildcards.run} --plan {params.plan:q} > {log} 2>&1"


rule certify:
    """Made where it is asked for by name: snakemake results/<run>/certificate.json."""
    input:
        "results/{run}/matches.safetensors",
        made="results/{run}/made/evaluate.json",
    output:
        "results/{run}/certificate.json",
        page="results/{run}/certificate.md",
    log:
        "logs/certify/{run}.log",
    conda:
        "../envs/probmetric.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        risk=PLAN.params.certificates.risk,
        confidence=PLAN.params.certificates.confidence,
    message:
        "Certify {wildcards.run}"
    shell:
        "probmetric certificate {wildcards.run} --risk {params.risk} --confidence {params.confidence} > {log} 2>&1"


rule bundle:
    """Many runs, one after the other, where a job for every step would be too many (probmetric.planning.bundles)."""
    input:
        bundle_digests,
        lambda wildcards: [
            ancient(path) for path in PLAN.bundle_origins(wildcards.bundle)
        ],
    output:
        "state/bundles/{bundle}.json",
    log:
        "logs/bundle/{bundle}.log",
    benchmark:
        "benchmarks/jobs/bundle/{bundle}.tsv"
    conda:
        "../envs/probmetric.yaml"
    threads: 1
    resources:
        gpu=0,
        mem_mb=bundle_megabytes,
        runtime=bundle_minutes,
    params:
        plan=lambda wildcards: PLAN.bundle_file(wildcards.bundle),
    message:
        "Make the runs of bundle {wildcards.bundle}"
    shell:
        "exec probmetric make {params.plan:q} --receipt {output} --threads {threads} > {log} 2>&1"
