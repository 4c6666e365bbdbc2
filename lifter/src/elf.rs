//! The input file: headers, segments, sections, symbols, relocations, unwind tables; parsed once, never changed.

pub mod cfi;
mod consistency;
mod cursor;
pub mod debug_file;
pub mod eh_frame;
pub mod image;
mod implied;
pub mod lsda;
mod parse;
pub(crate) mod sframe;
pub(crate) mod stubs;

pub use debug_file::DebugFile;
pub use eh_frame::Unwind;
pub use image::Image;
pub use stubs::stubs;
