//! Why no output was made. Each variant names the thing that it is about; the command line adds what to do.

use lifter::address::Va;
use lifter::entity::{Block, Func};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the plan places {0} twice")]
    PlacedTwice(Block),
    #[error("the plan places {0}, which belongs to pinned {1}")]
    PlacedPinned(Block, Func),
    #[error("the plan leaves out {0} of {1}, which moves")]
    NotPlaced(Block, Func),
    #[error("the plan mixes unwind classes in one fragment of {0}")]
    MixedUnwindClasses(Func),
    #[error("the bytes of {0} are not in the file")]
    NoBytes(Block),
    #[error("{at}: a reference to {target} does not reach")]
    OutOfReach { at: Va, target: Va },
    #[error("{0}: an 8-bit branch of pinned code names a block that moves")]
    ShortBranchFromPinned(Va),
    #[error(
        "bytes follow the ELF file at offset {at:#x} (an appended payload?) and would move: the output is {excess} bytes too long"
    )]
    TrailingPayload { at: u64, excess: u64 },
    #[error("the program header table has no room for one more entry")]
    NoProgramHeaderSlot,
    #[error("unwind tables: {0}")]
    Unwind(#[from] crate::relink::eh_frame::UnwindError),
    #[error("the program finds its unwind tables by their address, and they don't fit there any more")]
    UnwindTablesNamed,
    #[error("the debug file: {0}")]
    DebugFile(crate::debug::DebugError),
    #[error("instrumentation: {0}")]
    Instrument(String),
    #[error(
        "a library that runs nothing when it is loaded (it has neither DT_INIT nor DT_INIT_ARRAY), so it can't open its profile"
    )]
    NeverInitialized,
    #[error("the output is inconsistent: {0}")]
    Inconsistent(String),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
