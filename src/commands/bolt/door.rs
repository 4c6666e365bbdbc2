//! How BOLT's users come in: by a command of relift's, or by a link to relift that has the name of one of BOLT's programs.
//!
//! What follows the command is another program's command line: no word of it is taken for an option of relift's, which has its own `-v`, `--time` and `--version`.

use std::ffi::OsString;
use std::path::Path;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::failure::{Failure, Result};

/// BOLT's programs, and what each is here.
const PROGRAMS: [(&str, &str); 3] = [("llvm-bolt", "bolt"), ("merge-fdata", "merge-fdata"), ("perf2bolt", "perf2bolt")];

/// What was typed, the program's own name first.
pub(crate) fn parse(words: Vec<OsString>) -> Result<Cli> {
    let Some((own, others)) = split(&words) else { return Ok(Cli::parse_from(words)) };
    let mut cli = Cli::parse_from(own);
    if let Command::Bolt(raw) | Command::MergeFdata(raw) | Command::Perf2bolt(raw) = &mut cli.command {
        let text = |word: &OsString| {
            word.to_str().map(str::to_owned).ok_or_else(|| Failure::new(format!("not UTF-8: {}", word.display())))
        };
        raw.arguments = others.iter().map(text).collect::<Result<_>>()?;
    }
    Ok(cli)
}

/// The words up to the command of BOLT's, and those behind it, if there is one.
fn split(words: &[OsString]) -> Option<(Vec<OsString>, &[OsString])> {
    let (program, rest) = words.split_first()?;
    if let Some(command) = by_name(program) {
        return Some((vec![program.clone(), command.into()], rest));
    }
    let is_command = |word: &OsString| PROGRAMS.iter().any(|(_, command)| word == command);
    let at = words.iter().position(is_command).filter(|at| *at > 0)?;
    // A file may have such a name: before the command there are options only.
    let mut before = words[1..at].iter();
    while let Some(word) = before.next() {
        let text = word.to_str()?;
        if text == "--threads" {
            before.next();
        } else if !text.starts_with('-') {
            return None;
        }
    }
    Some((words[..=at].to_vec(), &words[at + 1..]))
}

/// The command for a program's name, which may end in a version, `llvm-bolt-22`.
fn by_name(program: &OsString) -> Option<&'static str> {
    let name = Path::new(program).file_name()?.to_str()?;
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').trim_end_matches('-');
    PROGRAMS.iter().find(|(theirs, _)| *theirs == name).map(|(_, command)| *command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn joined(text: &str) -> Option<(String, String)> {
        let words = words(text);
        let join = |words: &[OsString]| words.iter().filter_map(|w| w.to_str()).collect::<Vec<_>>().join(" ");
        split(&words).map(|(own, others)| (join(&own), join(others)))
    }

    #[test]
    fn a_link_with_the_name_of_a_program_of_bolts_is_that_program() {
        assert_eq!(joined("/usr/bin/llvm-bolt -v 1 a"), Some(("/usr/bin/llvm-bolt bolt".into(), "-v 1 a".into())));
        assert_eq!(joined("merge-fdata-22 a b"), Some(("merge-fdata-22 merge-fdata".into(), "a b".into())));
        assert_eq!(joined("perf2bolt -p x"), Some(("perf2bolt perf2bolt".into(), "-p x".into())));
    }

    #[test]
    fn relifts_own_options_come_before_the_command_and_bolts_behind_it() {
        assert_eq!(
            joined("relift --threads 2 --json bolt -time-opts"),
            Some(("relift --threads 2 --json bolt".into(), "-time-opts".into()))
        );
        assert_eq!(joined("relift bolt bolt -o x"), Some(("relift bolt".into(), "bolt -o x".into())));
    }

    #[test]
    fn a_file_with_the_name_of_a_command_is_a_file() {
        assert_eq!(joined("relift optimize bolt -o x"), None);
        assert_eq!(joined("bolt optimize a"), None);
    }
}
