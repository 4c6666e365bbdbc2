//! Smaller files: what each technique frees, and how the bytes leave the file.
//!
//! **Method.** Techniques free *address space*: [`dead`] leaves out functions, [`crate::layout::packed`] padding, [`tables`] packs what
//! the dynamic loader reads. None of them moves data. [`pack`] then chooses new file offsets, so that pages of which nothing is left are
//! not in the file any more ([`cuts`] splits segments for that), and puts what no loader reads into the holes that are left. A separate debug file follows at the
//! end (`relink::settle`), by the link that [`debug_link`] keeps in the program.

pub mod cuts;
pub mod dead;
pub mod debug_link;
mod dynamic;
pub mod forms;
pub mod outline;
pub mod own_loader;
pub mod pack;
mod relr;
mod section_table;
pub mod spread;
pub mod tables;
pub mod unloaded;
mod unwind_shift;
mod versions;
