//! What can be typed, and nothing of what it means.

pub(crate) mod shrink;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use rewriter::plan::Unwinds;

/// Optimize linked x86-64 ELF programs with a profile, without a rebuild.
#[derive(Debug, Parser)]
#[command(name = "relift", version, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print the machine-readable form.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Threads to use, 512 at most; 0 for one per processor. The output never depends on it.
    #[arg(long, global = true, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    /// Print where the time went.
    #[arg(long, global = true)]
    pub(crate) time: bool,
    /// Name every pinned function too.
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The main job in one step: instrument, run the training command, optimize, check, show before and after.
    Train(Train),
    /// Optimize for speed with a profile; without one, only what needs none.
    Optimize(Optimize),
    /// Make a smaller file that does the same.
    Shrink(shrink::Shrink),
    /// Make a program that writes its profile while it runs.
    Instrument(Instrument),
    /// Look at and combine profiles.
    Profile {
        #[command(subcommand)]
        command: ProfileCommand,
    },
    /// Show what was lifted, and what is pinned and why.
    Inspect(Inspect),
    /// Show what the alias analysis finds, and what it costs.
    Analyze(Analyze),
    /// Check an output against its input with other parsers and another disassembler.
    Check(Check),
    /// Compare two files: sizes, and with a profile of the first the executed instructions and branches.
    Diff(Diff),
    /// Take llvm-bolt's arguments: a program's name changed is all that a build needs.
    Bolt(Raw),
    /// Take merge-fdata's arguments.
    MergeFdata(Raw),
    /// Take perf2bolt's arguments.
    Perf2bolt(Raw),
    /// Run the main job on a program that comes with relift.
    Demo(Demo),
}

/// What every rewriting command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Rewrite {
    /// The program to read. It is never changed.
    pub(crate) input: PathBuf,
    /// The file to write.
    #[arg(short, long, value_name = "OUTPUT")]
    pub(crate) output: PathBuf,
    /// Check the invariants of every phase.
    #[arg(long)]
    pub(crate) verify: bool,
    /// Write the output without the independent check.
    #[arg(long)]
    pub(crate) no_check: bool,
    /// What becomes of debug information where code moves; `optimize` and `train` update it, `instrument` and `shrink` drop it.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) debug: Option<DebugInformation>,
}

/// Debug information in a file of its own, which the program's `.gnu_debuglink` or its build id leads to.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Separate {
    /// The separate debug file of INPUT: it is brought up to date too.
    #[arg(long, value_name = "FILE", requires = "debug_file_output")]
    pub(crate) debug_file: Option<PathBuf>,
    /// The debug file to write for OUTPUT, which names it: debuggers look in the same folder, in .debug there, and below /usr/lib/debug.
    #[arg(long, value_name = "FILE", requires = "debug_file")]
    pub(crate) debug_file_output: Option<PathBuf>,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DebugInformation {
    /// Line tables, scopes, variables and call sites are made true for the new code.
    Update,
    /// The sections that describe the old code are left out.
    Drop,
}

impl DebugInformation {
    pub(crate) fn mode(self) -> rewriter::debug::Mode {
        match self {
            DebugInformation::Update => rewriter::debug::Mode::Update,
            DebugInformation::Drop => rewriter::debug::Mode::Drop,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Train {
    #[command(flatten)]
    pub(crate) rewrite: Rewrite,
    #[command(flatten)]
    pub(crate) separate: Separate,
    /// Keep the profile here.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) transforms: Transforms,
    /// The training workload; {} stands for the program.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) workload: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Optimize {
    #[command(flatten)]
    pub(crate) rewrite: Rewrite,
    #[command(flatten)]
    pub(crate) separate: Separate,
    /// A profile: relift's own, perf.data, or BOLT's fdata, YAML or pre-aggregated text. Several are added up; PROFILE:N counts N times.
    #[arg(short, long, value_name = "PROFILE")]
    pub(crate) profile: Vec<PathBuf>,
    /// The build that the profiles were recorded on, if not INPUT: they are carried over to INPUT.
    #[arg(long, value_name = "OLD", requires = "profile")]
    pub(crate) profile_binary: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) transforms: Transforms,
    /// Show executed instructions and branches by this profile instead of the one that is optimized by.
    #[arg(long, value_name = "PROFILE")]
    pub(crate) measure_by: Vec<PathBuf>,
    /// Lay everything out at random but legally: a test of relift and of the program.
    #[arg(long, value_name = "SEED", conflicts_with = "profile")]
    pub(crate) shuffle: Option<u64>,
}

/// Switches for each transform.
#[derive(Debug, Args, Clone)]
pub(crate) struct Transforms {
    /// Run only these transforms.
    #[arg(long, value_delimiter = ',', value_name = "TRANSFORM")]
    pub(crate) only: Vec<Transform>,
    /// Leave these transforms out.
    #[arg(long, value_delimiter = ',', value_name = "TRANSFORM")]
    pub(crate) skip: Vec<Transform>,
    /// Run these transforms too, which are off by default: align-loops, fold, constant-loads, schedule.
    #[arg(long = "with", value_delimiter = ',', value_name = "TRANSFORM")]
    pub(crate) more: Vec<Transform>,
    /// Stop after this many changes, to bisect a fault: functions laid out anew first, then edits of code one by one.
    #[arg(long, value_name = "N")]
    pub(crate) fuel: Option<u64>,
    /// Clone functions for calling contexts in which arguments are known. Those that the checker can't prove are left out.
    #[arg(long, value_enum, default_value_t = CloneMode::None, value_name = "CONTEXTS")]
    pub(crate) clone: CloneMode,
    /// Clone for every context in which anything is saved, whatever it is worth: a test, and what tables of bytes compare.
    #[arg(long, hide = true)]
    pub(crate) clone_everywhere: bool,
    /// Contexts that are looked at for clones.
    #[arg(long, hide = true, value_name = "N", default_value_t = 15_000)]
    pub(crate) clone_contexts: usize,
    /// Instructions that must go for a context to have a clone.
    #[arg(long, hide = true, value_name = "N", default_value_t = 1)]
    pub(crate) clone_least: u32,
    /// Change code wherever that is legal, not only where it is hot: a test of relift and of the program.
    #[arg(long, hide = true)]
    pub(crate) edit_everywhere: bool,
    /// Take something for granted that no analysis can show.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT")]
    pub(crate) assume: Vec<Assumption>,
    /// Schedule by what holds whoever calls, as if no caller were known.
    #[arg(long, hide = true)]
    pub(crate) without_contexts: bool,
}

/// What may be taken for granted.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Assumption {
    /// No thread and no signal handler looks at memory in a moment that it has no right to: no data races, no lock-free code, no flags that handlers set.
    NoRaces,
    /// Nobody asks for the callers of code amid instructions that only compute in registers, push them, pop them or return; calls, jumps, accesses to memory and traps are none of these. Exceptions, crashes and
    /// breakpoints on lines are fine; profilers that walk the stack from where a timer stops the program, and `pthread_cancel` of threads that allow it anywhere, are not.
    NoAsyncUnwind,
}

/// Which contexts get clones.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CloneMode {
    #[default]
    None,
    /// Those one call deep.
    Direct,
    /// All; functions on the way get one copy, which keeps track of the context.
    Machine,
    /// The same, calls in copies always choosing by compares.
    Inline,
    /// The same, calls in copies always choosing by tables.
    Table,
    /// All; functions on the way get a copy for each context that can be told apart.
    Shared,
    /// All; functions on the way get a copy for each context.
    Full,
    /// As `machine`, wherever it is legal and whatever it is worth: a test of relift and of the program.
    All,
}

impl Transforms {
    pub(crate) fn assumes(&self, what: Assumption) -> bool {
        self.assume.contains(&what)
    }
    pub(crate) fn unwinds(&self) -> Unwinds {
        if self.assumes(Assumption::NoAsyncUnwind) { Unwinds::FromStops } else { Unwinds::Anywhere }
    }
    pub(crate) fn is_on(&self, transform: Transform) -> bool {
        let is_wanted = if self.only.is_empty() { transform.is_default() } else { self.only.contains(&transform) };
        (is_wanted || self.more.contains(&transform)) && !self.skip.contains(&transform)
    }
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transform {
    /// Order the blocks of each executed function.
    ReorderBlocks,
    /// Put what is not executed away from what is.
    SplitFunctions,
    /// Order the functions by who calls whom.
    ReorderFunctions,
    /// Align the headers of hot loops.
    AlignLoops,
    /// Copy the few instructions behind a hot jump that leave the function.
    DuplicateTails,
    /// Repeat short hot loops behind themselves, so that most rounds end without a jump.
    UnrollLoops,
    /// Let functions that do the same share one body.
    Fold,
    /// Put what is seldom executed away from what is often.
    SplitWarm,
    /// Call imported functions through their slots, not through stubs, where that is hot.
    PltCalls,
    /// Put the bodies of small functions that use no stack where hot calls of them are.
    InlineLeaves,
    /// Put numbers and addresses that never change where hot code loads them.
    ConstantLoads,
    /// Save registers only on the ways through hot functions that need it.
    LateSaves,
    /// Put the instructions of hot blocks in an order that takes fewer cycles.
    Schedule,
    /// Leave out `endbr64` where no tracked indirect branch can arrive.
    Endbr,
    /// Call functions of the file straight, not through words that never change.
    DirectCalls,
}

impl Transform {
    /// Whether it has shown that it pays.
    fn is_default(self) -> bool {
        !matches!(self, Transform::AlignLoops | Transform::Fold | Transform::ConstantLoads | Transform::Schedule)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Instrument {
    #[command(flatten)]
    pub(crate) rewrite: Rewrite,
    /// The file that the program counts into; made when it first runs.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProfileCommand {
    /// Print what a profile holds.
    Show {
        profile: PathBuf,
        /// Functions to list.
        #[arg(long, default_value_t = 20, value_name = "N")]
        top: usize,
    },
    /// Add profiles up: relift's of one instrumented program, or BOLT's fdata; PROFILE:N counts N times.
    Merge {
        #[arg(required = true)]
        profiles: Vec<PathBuf>,
        #[arg(short, long, value_name = "OUTPUT")]
        output: PathBuf,
    },
    /// Write profiles of a program, of any kinds, as one in a format of BOLT's.
    Convert {
        #[arg(required = true)]
        profiles: Vec<PathBuf>,
        #[arg(short, long, value_name = "OUTPUT")]
        output: PathBuf,
        #[arg(long, value_enum, value_name = "FORMAT")]
        format: TextFormat,
        /// The program that the profiles are for.
        #[arg(long, value_name = "INPUT")]
        program: PathBuf,
        /// The build that they were recorded on, if another.
        #[arg(long, value_name = "OLD")]
        profile_binary: Option<PathBuf>,
    },
    /// Say how well profiles fit a program: what was found in it, and how far from consistent it was.
    Quality {
        #[arg(required = true)]
        profiles: Vec<PathBuf>,
        /// The program that the profiles are for.
        #[arg(long, value_name = "INPUT")]
        program: PathBuf,
        /// The build that they were recorded on, if another.
        #[arg(long, value_name = "OLD")]
        profile_binary: Option<PathBuf>,
    },
}

/// The formats of BOLT's that can be written.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TextFormat {
    /// Branch records by function name.
    Fdata,
    /// By function and block; BOLT needs -profile-ignore-hash to take it.
    Yaml,
    /// Branches and straight runs by address, for `perf2bolt -pa`.
    Preaggregated,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    pub(crate) input: PathBuf,
    /// Show this function: a symbol's name, an address, or an id such as fn12.
    #[arg(long, value_name = "F")]
    pub(crate) func: Option<String>,
    /// Print its control-flow graph.
    #[arg(long, value_enum, value_name = "FORM", requires = "func")]
    pub(crate) cfg: Option<CfgForm>,
    /// List what is pinned, and why.
    #[arg(long)]
    pub(crate) pinned: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CfgForm {
    Dot,
    Text,
}

#[derive(Debug, Args)]
pub(crate) struct Analyze {
    pub(crate) input: PathBuf,
    /// A profile, of any kind that `optimize` takes; it says which call sites matter and which blocks are hot.
    #[arg(short, long, value_name = "PROFILE")]
    pub(crate) profile: Vec<PathBuf>,
    /// The build that the profiles were recorded on, if not INPUT.
    #[arg(long, value_name = "OLD", requires = "profile")]
    pub(crate) profile_binary: Option<PathBuf>,
    /// Which call sites are analyzed on their own.
    #[arg(long, value_enum, default_value_t = CriterionName::Insensitive, value_name = "CRITERION")]
    pub(crate) criterion: CriterionName,
    /// The share of a function's calls that its chosen call sites make up.
    #[arg(long, default_value_t = 1.0, value_name = "SHARE")]
    pub(crate) theta: f64,
    /// The share of executed instructions that hot blocks make up.
    #[arg(long, default_value_t = 0.95, value_name = "SHARE")]
    pub(crate) phi: f64,
    /// How many call sites `--criterion budgeted` takes.
    #[arg(long, default_value_t = 500, value_name = "N")]
    pub(crate) budget: usize,
    /// Show each pair of references in this function: a symbol's name, an address, or an id such as fn12.
    #[arg(long, value_name = "F", conflicts_with = "tables")]
    pub(crate) func: Option<String>,
    /// Compare all criteria: cost, independent pairs, clones.
    #[arg(long)]
    pub(crate) tables: bool,
    /// Show where executed loads and stores go.
    #[arg(long, conflicts_with_all = ["tables", "func"])]
    pub(crate) traffic: bool,
    /// Show the N blocks in which most instructions are executed: address, executions, bytes.
    #[arg(long, value_name = "N", conflicts_with_all = ["tables", "func", "traffic"])]
    pub(crate) hottest: Option<usize>,
    /// Follow constant arguments through up to N calling contexts, and show what specializing for them would save and take; several numbers make a table.
    #[arg(long, value_name = "N", value_delimiter = ',', num_args = 0.., default_missing_value = "15000", conflicts_with_all = ["func", "tables"])]
    pub(crate) contexts: Vec<usize>,
    /// With --contexts: how many instructions a context must save in its function to count.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "contexts")]
    pub(crate) least: u32,
    /// With --contexts: show the state machine, its copies and what their calls do.
    #[arg(long, value_name = "WHAT", requires = "contexts")]
    pub(crate) dump: Option<AnalyzeDump>,
}

/// What `analyze` prints beside its tables.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AnalyzeDump {
    /// The state machine that follows contexts.
    Fsm,
}

/// How call sites are chosen.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CriterionName {
    /// None: one analysis a function.
    Insensitive,
    /// All.
    Standard,
    /// The most frequent ones of each function.
    Frequency,
    /// Those of them that may decide something hot.
    Relevance,
    /// Those that alone make their callee hot.
    Conservative,
    /// As many as the budget has, best first.
    Budgeted,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    pub(crate) input: PathBuf,
    pub(crate) output: PathBuf,
    /// The separate debug file of INPUT.
    #[arg(long, value_name = "FILE", requires = "debug_file_output")]
    pub(crate) debug_file: Option<PathBuf>,
    /// That of OUTPUT.
    #[arg(long, value_name = "FILE", requires = "debug_file")]
    pub(crate) debug_file_output: Option<PathBuf>,
    /// What the output was made under.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT")]
    pub(crate) assume: Vec<Assumption>,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    pub(crate) input: PathBuf,
    pub(crate) output: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Keep the files here instead of in a scratch folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}

/// Arguments of another program, as they are.
#[derive(Debug, Args)]
pub(crate) struct Raw {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    pub(crate) arguments: Vec<String>,
}
