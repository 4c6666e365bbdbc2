//! The parts of the output file that follow from where code went.

pub mod eh_frame;
pub mod lsda;
