"""The flags of single programs; `trainer_flags` has those of `t2tp_trainer`, some shared."""

from __future__ import annotations

from absl import flags

from t2tp.trainer.cli.flag_groups import Group


def _define_evaluation(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "checkpoint_path",
        "",
        "Checkpoints: their directories, separated by commas, or 'all' of the run; by default the"
        " run's latest.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "split",
        "validation",
        "The split: train, validation, test, or another that the problem has. Each example counts"
        " once.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer("eval_steps", -1, "Batches; 0 or -1: all.", flag_values=flag_values)


def _define_decoding(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "decode_from_file",
        None,
        "File to decode: one source per line, for a language model one prompt. In a file *.jsonl a"
        " line is a conversation, a JSON list of messages, of which the run's chat template makes a"
        " prompt.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "decode_to_file",
        None,
        "File to write, with one line per source; by default it is named after what is decoded."
        " With --split: what the files' names begin with.",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "decode_interactive", False, "Decode what is typed, line by line.", flag_values=flag_values
    )
    flags.DEFINE_bool(
        "chat",
        False,
        "Decode conversations: with --decode_interactive a line is a message of the user's, and an"
        " empty line begins another conversation; a file is read as *.jsonl is.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "decode_reference",
        None,
        "With --decode_from_file: file of references to score against, one line per source.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "decode_prefix_file",
        None,
        "With --decode_from_file: file of prefixes that the results begin with, one line per"
        " source.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "split",
        None,
        "Decode this split: train, validation, test, or another that the problem has.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "score_file",
        None,
        "File of inputs<TAB>targets (for a language model: targets): print the log-probabilities of"
        " the targets, or write them to --decode_to_file.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "decode_hparams",
        "",
        "How to decode, as in beam_size=4,alpha=0.6,extra_length=50 or temperature=0.8,top_k=40;"
        " see docs/decoding.md.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "checkpoint_path",
        "",
        "Decode with this checkpoint; by default with the run's latest.",
        flag_values=flag_values,
    )


def _define_export(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "export_dir",
        None,
        "Directory of the exported models, each in its own directory; by default"
        " OUTPUT_DIR/export.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "decode_hparams",
        "",
        "How the exported model decodes, as in beam_size=4,alpha=0.6,extra_length=50; batch_size,"
        " by default 1, is how many prompts of a request it decodes together.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "max_input_length",
        None,
        "Max tokens of inputs or of a prompt; by default the model's max_length.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "checkpoint_path",
        "",
        "Export this checkpoint; by default the run's latest.",
        flag_values=flag_values,
    )


def _define_data(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "problem",
        None,
        "Name of a problem: a registered one, tfds:NAME or mixture:...",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "problem_options",
        "",
        "Its options, as in 'files=texts/**/*.txt,documents=lines'.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "vocab_size", None, "Tokens of the vocabulary.", lower_bound=1, flag_values=flag_values
    )
    flags.DEFINE_string(
        "t2t_usr_dir", None, "Directory of your own problems.", flag_values=flag_values
    )


def _define_data_directories(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "data_dir",
        None,
        "Directory of all data; the problem has its own directory in it.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "tmp_dir",
        None,
        "Directory that keeps downloads; by default they are deleted.",
        flag_values=flag_values,
    )


def _define_generation(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_bool(
        "overwrite", False, "Make the data again even if they exist.", flag_values=flag_values
    )
    flags.DEFINE_integer(
        "num_shards",
        None,
        "Shards of the train split; by default one for each 500 samples, up to 64.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "num_workers",
        None,
        "Max processes that encode; by default as many as make it faster, up to one per core.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "max_bad_samples",
        None,
        "Skip up to so many samples that cannot be used; by default one in 1,000.",
        lower_bound=0,
        flag_values=flag_values,
    )


def _define_beam(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "beam_runner",
        "",
        "Runner of Apache Beam that makes the shards, in place of --num_workers: DirectRunner,"
        " FlinkRunner, SparkRunner, DataflowRunner or another.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "beam_pipeline_options",
        "",
        "Its options, as in '--direct_num_workers=4 --direct_running_mode=multi_processing'.",
        flag_values=flag_values,
    )


def _define_inspection(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_bool("check", False, "Check every byte of existing data.", flag_values=flag_values)
    flags.DEFINE_bool(
        "inspect",
        False,
        "Show examples, lengths and the fraction of padding of existing data.",
        flag_values=flag_values,
    )


def _define_launch(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "num_processes",
        None,
        "Processes to start on this host.",
        lower_bound=1,
        short_name="n",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "devices_per_process",
        None,
        "Devices that each process brings to the mesh; by default its part of this host's GPUs, or,"
        " without GPUs, of the mesh.",
        lower_bound=1,
        flag_values=flag_values,
    )


def _define_restarts(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "max_restarts",
        0,
        "After a failure of a process or the loss of a host, end all processes and go on from the"
        " last checkpoint, at most so many times.",
        lower_bound=0,
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "meshes",
        "",
        "Mesh shapes separated by |, as in 'data:4;model:2 | data:2;model:2': the first for all"
        " processes, another one while there are fewer. By default the mesh stays, and fewer"
        " processes have more virtual devices each.",
        flag_values=flag_values,
    )


def _define_hosts(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "hosts",
        "",
        "Addresses of the launchers of all hosts, as in node[1-4]:8470; start one on each, with the"
        " same T2TP_SECRET. By default those in TF_CONFIG; this host alone without it.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "host_id",
        None,
        "Which of --hosts this one is, from 0; by default what TF_CONFIG, Kubernetes"
        " (JOB_COMPLETION_INDEX) or Slurm (SLURM_NODEID) says.",
        lower_bound=0,
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "host_timeout",
        10.0,
        "Seconds without an answer after which a host is lost.",
        lower_bound=0.1,
        flag_values=flag_values,
    )


def _define_averaging(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "checkpoints",
        "",
        "Directories of checkpoints, separated by commas.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "output_dir",
        "",
        "Directory of a run whose latest checkpoints are averaged, in place of --checkpoints.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "num_last_checkpoints",
        8,
        "With --output_dir: how many checkpoints.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "output_path",
        None,
        "Directory of the result; it is created if needed.",
        flag_values=flag_values,
    )


def _define_bleu(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string("translation", None, "File of translated lines.", flag_values=flag_values)
    flags.DEFINE_string(
        "reference", None, "File of the reference translations.", flag_values=flag_values
    )
    flags.DEFINE_string(
        "source",
        None,
        "File of the lines that were translated, to check their number.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "translations_dir", None, "Directory of files named NAME-STEP.", flag_values=flag_values
    )
    flags.DEFINE_string(
        "event_dir",
        None,
        "Directory for the events; by default --translations_dir.",
        flag_values=flag_values,
    )
    flags.DEFINE_enum(
        "bleu_variant",
        "both",
        ["both", "cased", "uncased"],
        "Whether case matters: cased, uncased or both.",
        flag_values=flag_values,
    )
    flags.DEFINE_string("tag_suffix", "", "Suffix of the scores' names.", flag_values=flag_values)
    flags.DEFINE_integer(
        "min_steps", 0, "Skip translations of fewer steps.", flag_values=flag_values
    )


def _define_search(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "hparams_range", None, "Name of a registered ranged set.", flag_values=flag_values
    )
    flags.DEFINE_integer(
        "trials",
        None,
        "Points to train, of all processes together; by default 10, or every point of a grid.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_enum(
        "sampler",
        "tpe",
        ["random", "tpe", "cmaes", "grid"],
        "How points are chosen: at random (point K is that of t2tp_trainer --trial=K), by TPE or"
        " CMA-ES from what the trials before have given, or all points of a grid.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "grid_points",
        3,
        "With --sampler=grid: values of each interval; of choices it has all.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_enum(
        "pruner",
        "none",
        ["none", "median", "asha", "hyperband"],
        "Which trials are given up early, by their evaluations: none, those worse than the median,"
        " or by successive halving, ASHA or Hyperband.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "metric",
        "loss",
        "The metric to compare by, or several with commas between them, each optionally with its"
        " direction, as in min:loss,max:accuracy.",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "minimize",
        True,
        "Whether a smaller metric is better, where --metric does not say.",
        flag_values=flag_values,
    )


def _define_search_place(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "output_dir",
        None,
        "Directory of the search; each run has its own directory in it.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "study",
        None,
        "Where the processes of a search, on any hosts, keep what is tried: journal:FILE or the URL"
        " of a database, as in postgresql://user@host/name; by default a journal in --output_dir.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "study_name",
        None,
        "Name of the search in --study; by default that of the ranged set.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "parallel_trials",
        1,
        "Trials that run at once in this process.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "devices_per_trial",
        None,
        "GPUs of each trial or, on a host without any, cores; by default an equal share.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "lost_after_seconds",
        60.0,
        "A trial is continued by another process if its own shows no sign of life for so long.",
        lower_bound=1.0,
        flag_values=flag_values,
    )


def _define_conversion(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "from_hf",
        None,
        "Directory of Hugging Face to make a run of: config.json, *.safetensors.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "to_hf", None, "Directory of Hugging Face to make of a run.", flag_values=flag_values
    )
    flags.DEFINE_string(
        "output_dir",
        None,
        "Directory of the run: with --from_hf a new one.",
        flag_values=flag_values,
    )
    flags.DEFINE_enum(
        "dtype",
        None,
        ["float32", "bfloat16", "float16"],
        "dtype of what is written; by default that of what is read.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "problem",
        None,
        "With --from_hf: problem of the run; by default languagemodel_textfiles or what the model"
        " is for.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "problem_options", "", "With --from_hf: the problem's options.", flag_values=flag_values
    )
    flags.DEFINE_string(
        "model_type",
        None,
        "With --to_hf: type of the model, such as llama; by default the one that the run was made"
        " of, or the first that has its architecture.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "checkpoint_path",
        "",
        "With --to_hf: the checkpoint; by default the run's latest.",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "merge_lora",
        False,
        "With --to_hf, of a run with lora_rank: write the full model with the adapters merged into"
        " its weights, instead of the adapters alone, for PEFT.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "max_shard_size",
        "",
        "With --to_hf: the largest file of tensors, such as 500MB; by default 5GB.",
        flag_values=flag_values,
    )


EVALUATION = Group("What to evaluate on", _define_evaluation)
DECODING = Group("What to decode", _define_decoding)
EXPORT = Group("What to export", _define_export)
DATAGEN = (
    Group("What is made", _define_data),
    Group("Where", _define_data_directories),
    Group("How", _define_generation),
    Group("With Apache Beam", _define_beam),
    Group("Looking at what was made", _define_inspection),
)
LAUNCH = (
    Group("Processes", _define_launch),
    Group("Restarts", _define_restarts),
    Group("Several hosts", _define_hosts),
)
CONVERSION = Group("What to convert", _define_conversion)
AVERAGING = Group("What to average", _define_averaging)
BLEU = Group("What to score", _define_bleu)
SEARCH = (
    Group("What to try", _define_search),
    Group("Where", _define_search_place),
)


def _define_planning(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "cluster",
        None,
        "The cluster: a100, another name that t2tp knows, this_machine, or a .toml file's path.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "stack", "", "Software of the cluster; by default the file's.", flag_values=flag_values
    )
    flags.DEFINE_integer(
        "vocab_size",
        None,
        "Tokens, classes or pixel values; by default those of the problem's data.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_list(
        "image_shape",
        None,
        "Of models of images: height, width and channels; by default 224,224,3.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "processes",
        1,
        "Of a measured machine: processes that its devices are in.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_bool("json", False, "Print the plan as JSON.", flag_values=flag_values)
    flags.DEFINE_string(
        "html", None, "Also draw the plan, as one page in this file.", flag_values=flag_values
    )


def _define_layout_search(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_bool(
        "search",
        False,
        "Search mesh, layout, pipeline stages, microbatches, recomputation and ZeRO stage for the"
        " fastest step.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "devices",
        None,
        "With --search: number of devices.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "global_batch_tokens",
        None,
        "With --search: tokens of a step, as in 4M, which is 4 * 2^20; by default the batch of the"
        " hparams.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "max_tensor_parallel",
        0,
        "With --search: max size of the axis that splits heads and hidden layers; by default the"
        " devices of a host.",
        lower_bound=0,
        flag_values=flag_values,
    )
    flags.DEFINE_multi_string(
        "fix",
        [],
        "With --search: what is not to be chosen, as in recompute=layer or heads:model.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "top",
        10,
        "With --search: number of layouts to plan and print.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "train_tokens",
        None,
        "Tokens of the whole training, as in 300B: prints the days that it takes.",
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "days",
        0.0,
        "With --search and --train_tokens: finds how many devices are done in so many days, from"
        " --devices on.",
        lower_bound=0.0,
        flag_values=flag_values,
    )


PLANNING = Group("Planning", _define_planning)
LAYOUT_SEARCH = Group("Searching layouts", _define_layout_search)


def _define_calibration(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "output",
        "this_machine.toml",
        "The cluster file to write; t2tp_plan --cluster=this_machine reads the default one.",
        flag_values=flag_values,
    )
    flags.DEFINE_list(
        "devices",
        ["1", "2", "4", "8"],
        "Numbers of virtual devices in a process.",
        flag_values=flag_values,
    )
    flags.DEFINE_list(
        "processes", ["2", "4"], "Numbers of processes, of a device each.", flag_values=flag_values
    )
    flags.DEFINE_bool(
        "append", False, "Add to the curves that the file has.", flag_values=flag_values
    )


CALIBRATION = Group("What to measure", _define_calibration)
