"""Names and phrases that the source, the tests and the documents no longer use, each with its replacement.

`word_lint.py` finds them, `test_words.py` counts them. Two mechanisms:

PHRASES  words and phrases in the lower-case text of a file: code, docstrings, comments, messages, pages. A space
         matches spaces, underscores, line breaks with their comment signs, and the seams of adjacent string literals:
         a phrase is found in identifiers too, and where it is wrapped.
NAMES    exact identifiers, compared with what files define: files, classes, functions, methods, parameters, fields,
         attributes and constants. Local variables are not compared.

Both may be limited to some folders: a word can be private vocabulary in one package and plain English in another.
Text that must keep an old name (a key that is written or sent, a hidden alias) has the mark `old name:` with its reason
on the same line; EXEMPT lists whole files.
"""

from dataclasses import dataclass

MARK = "old name:"

# Beginnings of paths that are not searched.
EXEMPT = (
    "src/sporelm/weights/",  # the former place of sporelm.files
    "src/sporelm/serve/webui/vendor/",  # written by others
    "tests/architecture/retired_words.py",
    "tests/architecture/test_words.py",
)

ENGINE = ("src/sporelm/engine/", "tests/unit/engine/")
KV = ("src/sporelm/engine/kv/",)
SAMPLING = ("src/sporelm/engine/sampling/",)
SPECULATIVE = ("src/sporelm/engine/speculative/", "docs/speculation.md")
API = ("src/sporelm/api/",)
SERVE = ("src/sporelm/serve/",)
OPS = ("src/sporelm/ops/", "src/sporelm/backends/", "src/sporelm/models/", "tests/conformance/", "tests/unit/ops/")
CPU = ("src/sporelm/backends/cpu/", "src/sporelm/quant/", "tests/unit/backends/")
MODELS = ("src/sporelm/models/", "src/sporelm/checkpoints/")
# Where threads are meant; elsewhere a team is one of people.
THREADS = ("src/sporelm/backends/", "src/sporelm/ops/", "src/sporelm/plan/", "src/sporelm/engine/", "tests/", "docs/")
FILES = ("src/sporelm/checkpoints/", "src/sporelm/files/")
CHECKPOINTS = ("src/sporelm/checkpoints/", "tests/unit/checkpoints/")
RANKS = (
    "src/sporelm/distributed/",
    "src/sporelm/engine/",
    "src/sporelm/api/",
    "src/sporelm/models/",
    "tests/unit/distributed/",
    "tests/unit/engine/",
    "tests/unit/api/",
)
# Where weights are divided over ranks; texts and steps are still cut.
SHARDS = (
    "src/sporelm/distributed/placement.py",
    "src/sporelm/distributed/parallel_config.py",
    "src/sporelm/engine/ranks/",
    "src/sporelm/models/sharded_model.py",
    "src/sporelm/models/sharding_plan.py",
    "src/sporelm/models/params.py",
    "docs/distributed.md",
)


@dataclass(frozen=True)
class Phrase:
    """Words that begin a phrase, an expression for the rest of it, and what to write in its place.

    The words are compared whole. In `rest` a space matches as the docstring of this file says.
    """

    words: str  # separated by spaces
    instead: str
    rest: str = ""
    only: tuple[str, ...] = ()  # beginnings of paths; empty: everywhere


@dataclass(frozen=True)
class Names:
    """Identifiers, and what to call such things."""

    names: str  # separated by spaces
    instead: str
    only: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()  # empty: all kinds


# "is no longer" and the like are plain English.
NO = (
    " no(?![-a-z])(?! (?:longer|more|less|fewer|larger|smaller|greater|bigger|better|worse|faster|slower|later|earlier"
    "|shorter|higher|lower|wider|one)(?![a-z]))"
)
IS = "(?:is|are|was|were|be|being)"

# Phrases that hold one of those below and are allowed.
ALLOWED = (
    Phrase("there", "", f"(?: (?:would|may|can|must|will|should))? {IS} no(?![a-z])"),
    Phrase("team", "", " (?:19|20)[0-9]{2}(?![0-9])"),  # the authors of a paper: "Gemma Team 2024"
)

PHRASES = (
    # Sentences
    Phrase("is are was were be been", '"is not a ...", "does not ..."', NO),
    Phrase("be", '"unavailable", "cannot bind", "cannot allocate"', " had(?![a-z])"),
    Phrase("anew", '"again"'),
    Phrase("once", '"again"', " more(?! than)(?![a-z])"),
    Phrase("whom whoever whomever", '"anyone who", "the caller", a noun'),
    Phrase("nobody everybody somebody anybody", '"no caller", "anyone", a noun'),
    Phrase("what", "name the thing", " (?:is|are|was|were) (?:not|no|none|neither)(?![a-z])"),
    Phrase("what", '"vision and audio tensors"', " (?:sees|hears)(?![a-z])"),
    Phrase("of", "two sentences", " which(?![a-z])"),
    Phrase("those", "repeat the noun", " (?:that|which|whose)(?![a-z])"),
    Phrase("so", '"that many", "n tokens"', " many(?![a-z])"),
    Phrase("come comes came coming", '"finish", "fail"', " to (?:its|their|an) end(?![a-z])"),
    Phrase("is are was were", '"does not exist", "is missing"', " not there(?![a-z])"),
    Phrase("vouch vouched vouches vouching", '"verify", "verified against"'),
    Phrase("made", '"random", "synthetic"', "(?:-| )up(?![a-z])"),
    # Private nouns
    Phrase("dormitory dormitories", '"KV offload store"'),
    Phrase("bed beds", '"entry"'),
    Phrase("twin twins", '"parent", "child"'),
    Phrase("crew crews team teams", '"thread pool", "pool threads"', only=THREADS),
    Phrase("bell bells", '"notifier"'),
    Phrase("unbroken", '"shielded"'),
    Phrase("farewell farewells", '"on_unload"'),
    Phrase("leftover leftovers", '"stale temporary files"'),
    Phrase("reworded regrouped unsaid", "a schema in checkpoints", only=("src/", "docs/", "tests/unit/checkpoints/")),
    Phrase("brought", "a transform in checkpoints; in prose another verb"),
    Phrase("foretold", '"draft_sampler_state"'),
    Phrase("regime regimes", '"step bucket"'),
    Phrase("unbranch unbranched", '"rollback_draft"'),
    Phrase("distrust distrusts distrusted", '"invalidate"'),
    Phrase("asleep awake woken slept sleep sleeps wake wakes", '"offloaded", "offload", "restore"', only=KV),
    Phrase("guess guesses guessed guessing", '"draft"', only=SPECULATIVE),
    Phrase("cut cuts", '"shard", "sharded", "split" of a graph or a step', only=SHARDS),
)

# A docstring opens with an imperative or a noun phrase.
OPENINGS = "what who whoever whose whatever nobody everybody somebody anybody those that"  # separated by spaces

# Participles and pronoun-like words that name nothing by themselves.
BARE = (
    "made said told kept brought found left asked wanted noticed given gone like way ways work part place "
    "seen held taken drawn chosen shown lent fed known meant heard begun spent opened wrapped listed adapted picked "
    "beside alone"
)
DEFINED = ("file", "class", "function", "method", "field", "attribute")

NAMES = (
    Names(BARE, "a noun for a class or field, a verb for a function, is_/has_ for a boolean", kinds=DEFINED),
    Names("salt", "cache_salt", ENGINE),
    Names("owner", "tenant", ENGINE),
    Names("aim", "set_snapshot_positions", ENGINE),
    Names("marks passing", "state_snapshots, transient snapshot", ENGINE),
    Names("reach", "max_step_end; half_window of attention", (*ENGINE, *OPS)),
    Names("affordable branch discard adopt", "fit_drafts, begin_draft, rollback_step, attach_prefix", ENGINE),
    Names("Chain blank kept", "PageHashes, uncached and cached pages", ENGINE),
    Names(
        "Part Advance Picked Choice Scores _Draft",
        "ScheduledSequence, StepOutput, SamplerOutput, SamplerState, ModelOutput, StepBuilder",
        ENGINE,
    ),
    Names("Limits pace reading own_file", "EngineConfig, prefill_budget, encoder_engine, overwrite_check", ENGINE),
    Names("texts", "encoder_engine, encoder_batch", ("src/sporelm/engine/",), ("file",)),
    Names("cut left drawn Edit", "filters, apply_filters, sample, LogitsProcessor", SAMPLING),
    Names("Guess _Habit said", "draft, DraftBackoff, output tokens", ENGINE),
    Names(
        "Adapted Replayed Reading Watch Pace RowText TextLine TextSteps",
        "LoraRuntime, ReplayResult, EncoderRequest, EngineObserver, PrefillBudget, Request",
        ENGINE,
    ),
    Names(
        "incoming watching pump stepwise machine Opened Told",
        "model_loader, trace_and_record, engine_thread, cooperative, cpu_count, LoadedEngine, RenderedPrefix",
        API,
    ),
    Names(
        "keeping many places cut_calls filling listening Refusal Limits",
        "keep_alive, prompt_list, path_redaction, truncated_tool_calls, fim, uvicorn_runner, ApiError, "
        "RequestLimitsMiddleware",
        SERVE,
    ),
    Names(
        "apart apart_attention part_idle choose_slots chosen_attention text_attention",
        "disentangled_attention, split_zero_experts, topk_indexer, sparse_mla, encoder_attention",
        (*OPS, "src/sporelm/evals/"),
    ),
    Names("meaning form", "reference, storage transform", (*OPS, "src/sporelm/plan/")),
    Names(
        "Alone Beside LendingAttention LentLayer FedLayer fed_through",
        "MLPOnlyMixer, ParallelMixers, SharedKVAttention, SharedKVLayer, run_per_layer_inputs",
        MODELS,
    ),
    Names("row_rules turns untouched", "rowwise_lowering, coordinate_search, skip_rules", CPU),
    Names("words own reads alone wanted noticed said", "a schema in checkpoints, a typed config", MODELS),
    Names("Stored forms beside hold", "MappedTensor, transforms, metadata_tensors, file_lock", FILES),
    Names(
        "beside_vision text_part without_images whole_of inner_of within_whole",
        "text_config, select_text_config, lift_image_rope_keys, find_multimodal_class, find_text_prefix",
        CHECKPOINTS,
    ),
    Names(
        "templated ignorable of_further_layers name_fronts name_in updated refuse_unknown",
        "split_layer_number, find_unread, find_mtp_tensors, optional_prefixes, find_spelling, with_changes",
        CHECKPOINTS,
    ),
    Names(
        "sayable fitting flags_of with_places lost_in_gguf unpooled gained magnitude MAKERS_KEYS",
        "fits_gguf, check_dense_widths, pooling_flags, counts_scaled_positions, compute_mscale, PUBLISHED_KEYS",
        CHECKPOINTS,
    ),
    Names(
        "Assembled assembled scaled repeated counted_groups computed restored in_place",
        "AssembledWeight, assemble, count_notes, compute, restore: verbs for functions",
        CHECKPOINTS,
    ),
    Names("text_facts TextFacts layer_kinds", "encoder_config, EncoderConfig, hybrid_layers", MODELS),
    Names(
        "Placed PlacedModel placed_model RemoteRank weight_cuts WeightCut ModelCuts CacheCut RankCuts GroupCuts "
        "stage_cut",
        "DistributedValue, ShardedModel, ProcessRank, ShardingPlan, WeightSharding, CacheShard, stage_split",
        RANKS,
    ),
    Names("Placeholder placeholder placeholder_caches", "MetaTensor, create_meta_caches", ("src/sporelm/models/",)),
)

# Patterns for identifiers of any kind.
NAME_PATTERNS = (
    ("_?(?:MOST|LEAST|most|least)(?:_[A-Za-z0-9_]+)?", "max_..., min_...", ()),
    ("[a-z0-9_]+_words", "schemas in checkpoints", MODELS),
)

# First columns of docs/glossary.md.
GLOSSARY_KEYS = (
    "bell beside bed choice chain crew dormitory farewell form guess habit made-up meaning part reach regime team twin "
    "vouched asleep"
)
