//! The program's debug file, where it has one of its own: read beside the program, written beside the output.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use checker::Files;
use lifter::Image;
use lifter::elf::DebugFile;
use rewriter::debug;
use rewriter::relink::NewDebugFile;

use super::profile;
use crate::args::{Rewrite, Separate};
use crate::failure::{Failure, Result, from_debug_file};
use crate::files::{self, Draft, Input};
use crate::report;

/// The two debug files.
pub(super) struct Paths<'a> {
    input: &'a Path,
    output: &'a Path,
    bytes: Input,
}

/// Refuses debug files in the place of what is needed.
pub(super) fn keep_apart(separate: &Separate, rewrite: &Rewrite, profiles: &[PathBuf]) -> Result<()> {
    let (Some(input), Some(output)) = (&separate.debug_file, &separate.debug_file_output) else { return Ok(()) };
    files::keep_apart(output, [(&*rewrite.input, "the input"), (&*rewrite.output, "the output")])?;
    files::keep_apart(&rewrite.output, [(&**input, "the debug file")])?;
    profile::keep_apart(output, profiles)
}

impl<'a> Paths<'a> {
    /// Reads the input's, if one is named.
    pub(super) fn open(separate: &'a Separate) -> Result<Option<Self>> {
        let (Some(input), Some(output)) = (&separate.debug_file, &separate.debug_file_output) else { return Ok(None) };
        Ok(Some(Paths { input, output, bytes: files::read(input)? }))
    }

    /// The debug file, if it is the program's.
    pub(super) fn parse(&self, program: &Image<'_>) -> Result<DebugFile<'_>> {
        DebugFile::parse(&self.bytes, program).map_err(|error| from_debug_file(self.input, &error))
    }

    /// What the relinker is to do with it: the output names the new one as debuggers look for it, without its folder.
    pub(super) fn wanted<'d>(&'d self, file: &'d DebugFile<'d>) -> Result<debug::Separate<'d>> {
        let name = self.output.file_name().ok_or_else(|| Failure::at(self.output, "names no file"))?;
        Ok(debug::Separate { file, name: name.as_bytes() })
    }

    pub(super) fn write(&self, new: &NewDebugFile) -> Result<Draft> {
        Draft::write(self.output, &new.bytes, self.input)
    }

    pub(super) fn report(&self, new: &NewDebugFile) -> report::DebugFile {
        report::DebugFile {
            path: self.output.display().to_string(),
            bytes: new.bytes.len() as u64,
            build_id: new.build_id.as_ref().map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect()),
        }
    }
}

/// A program with the debug file that is checked with it.
pub(super) fn files<'f>(program: &'f [u8], debug_file: Option<&'f [u8]>) -> Files<'f> {
    Files { program, debug_file }
}

/// The bytes of the input's debug file.
pub(super) fn bytes<'f>(paths: Option<&'f Paths<'_>>) -> Option<&'f [u8]> {
    paths.map(|paths| &*paths.bytes)
}
