//! The program's debug file, where it has one of its own: read beside the program, written beside the output.
//!
//! **Invariant.** Neither output is seen before both are written whole.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use checker::Files;
use lifter::Image;
use lifter::elf::DebugFile;
use rewriter::relink::{self, NewDebugFile};
use rewriter::{debug, shrink::debug_link};

use super::profile;
use crate::args::{Rewrite, Separate};
use crate::failure::{Failure, Result, from_debug_file, from_rewriter};
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
        Ok(debug::Separate { file, name: self.name()? })
    }

    fn name(&self) -> Result<&[u8]> {
        let name = self.output.file_name().ok_or_else(|| Failure::at(self.output, "names no file").of_debug_file())?;
        Ok(name.as_bytes())
    }

    /// The program with a link to the new debug file.
    pub(super) fn linked(&self, rewrite: &Rewrite, program: &[u8]) -> Result<Vec<u8>> {
        debug_link::with_link(program, self.name()?).map_err(|error| from_rewriter(&rewrite.input, &error).of_debug_file())
    }

    /// The debug file of a finished program that has this link, by what was true of its code: the input's debug file if none is given. Both are told of each other.
    pub(super) fn settle(&self, rewrite: &Rewrite, program: &mut [u8], of_code: Option<&NewDebugFile>) -> Result<NewDebugFile> {
        let of_code = of_code.map_or(&*self.bytes, |new| &new.bytes);
        relink::settle(program, of_code, self.name()?).map_err(|error| from_rewriter(&rewrite.input, &error))
    }

    fn write(&self, new: &NewDebugFile) -> Result<Draft> {
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

/// Writes a program and its debug file; gives what the user is to be warned of.
pub(super) fn write(rewrite: &Rewrite, program: &[u8], debug_file: Option<(&Paths<'_>, &NewDebugFile)>) -> Result<Vec<String>> {
    let draft = Draft::write(&rewrite.output, program, &rewrite.input)?;
    let mut warnings: Vec<String> = draft.warning().into_iter().collect();
    if let Some((paths, new)) = debug_file {
        let draft = paths.write(new)?;
        warnings.extend(draft.warning());
        draft.put_in_place()?;
    }
    draft.put_in_place().map(|()| warnings)
}

/// A program with the debug file that is checked with it.
pub(super) fn files<'f>(program: &'f [u8], debug_file: Option<&'f [u8]>) -> Files<'f> {
    Files { program, debug_file }
}

/// The bytes of the input's debug file.
pub(super) fn bytes<'f>(paths: Option<&'f Paths<'_>>) -> Option<&'f [u8]> {
    paths.map(|paths| &*paths.bytes)
}
