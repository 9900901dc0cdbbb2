"""One run: train the encoder, fit the posterior, embed, evaluate.

`exec`: a scheduler's SIGTERM ends the shell at once; in its place, `probmetric` saves its state first.
"""


rule train:
    input:
        digest=train_digest,
    output:
        weights="results/{run}/model.safetensors",
        last="results/{run}/model_last.safetensors",
        history="results/{run}/history.csv",
        record="results/{run}/encoder.yaml",
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
        mem_mb=4000,
        runtime=1440,
    params:
        settings=step_settings("train"),
        data=train_identity,
    message:
        "Train {wildcards.run}"
    shell:
        "exec probmetric train {wildcards.run} --settings {params.settings:q} --threads {threads}"
        " --processes {resources.processes} > {log} 2>&1"


rule fit_posterior:
    input:
        weights=encoder_file("model.safetensors"),
        record=encoder_file("encoder.yaml"),
        digest=train_digest,
    output:
        "results/{run}/posterior.safetensors",
    log:
        "logs/fit_posterior/{run}.log",
    benchmark:
        "benchmarks/jobs/fit_posterior/{run}.tsv"
    conda:
        "../envs/probmetric.yaml"
    threads: 1
    resources:
        gpu=0,
        mem_mb=4000,
        runtime=240,
    params:
        settings=step_settings("fit_posterior"),
        data=train_identity,
    message:
        "Fit the posterior of {wildcards.run}"
    shell:
        "exec probmetric fit-posterior {wildcards.run} --settings {params.settings:q} --threads {threads} > {log} 2>&1"


rule embed:
    input:
        weights=encoder_file("model.safetensors"),
        last=encoder_file("model_last.safetensors"),
        record=encoder_file("encoder.yaml"),
        posterior=posterior,
        digest=run_digests,
    output:
        collect(
            "results/{{run}}/embeddings/{split}.safetensors",
            split=["val", "test", "ood", "last"],
        ),
        timing="results/{run}/embeddings/timing.json",
    log:
        "logs/embed/{run}.log",
    benchmark:
        "benchmarks/jobs/embed/{run}.tsv"
    conda:
        "../envs/probmetric.yaml"
    threads: 1
    resources:
        gpu=0,
        processes=1,
        mem_mb=4000,
        runtime=240,
    params:
        settings=step_settings("embed"),
        data=data_identity,
    message:
        "Embed {wildcards.run}"
    shell:
        "exec probmetric embed {wildcards.run} --settings {params.settings:q} --threads {threads}"
        " --processes {resources.processes} > {log} 2>&1"


rule evaluate:
    input:
        embeddings=rules.embed.output,
        record=encoder_file("encoder.yaml"),
        digest=run_digests,
    output:
        metrics="results/{run}/metrics.json",
        curves="results/{run}/curves.json",
        record="results/{run}/run.yaml",
    log:
        "logs/evaluate/{run}.log",
    benchmark:
        "benchmarks/jobs/evaluate/{run}.tsv"
    conda:
        "../envs/probmetric.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=120,
    params:
        settings=step_settings("evaluate"),
        data=data_identity,
    message:
        "Evaluate {wildcards.run}"
    shell:
        "OMP_NUM_THREADS={threads} exec probmetric evaluate {wildcards.run} --settings {params.settings:q} > {log} 2>&1"
