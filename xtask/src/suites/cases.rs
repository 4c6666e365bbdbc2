//! What a script left behind: cases, each with a name and what was seen of it.
//!
//! Every file of the results is a case, but for three endings: each line of a `.lines` file is a case by its number, each line of the Test
//! Anything Protocol in a `.tap` file too, and each `<testcase>` of a `.xml` file in JUnit's form is one by its name.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::shell::{self, Result};

#[derive(Clone, Debug, Default)]
pub(super) struct Cases {
    by_name: BTreeMap<String, Vec<u8>>,
}

/// Two runs side by side.
#[derive(Clone, Debug, Default)]
pub(super) struct Comparison {
    pub(super) cases: usize,
    pub(super) equal: usize,
    /// Cases in which the original does not say the same twice; counted as equal or different too.
    pub(super) unsteady: usize,
    pub(super) different: Vec<String>,
}

impl Cases {
    /// Reads the results of a script that ended in a certain way.
    pub(super) fn read(folder: &Path, end: &str) -> Result<Cases> {
        let mut cases = Cases::default();
        cases.read_folder(folder, "")?;
        cases.by_name.insert("the script's end".into(), end.into());
        Ok(cases)
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> Result {
        for path in shell::sorted_entries(folder)? {
            let name = format!("{prefix}{}", path.file_name().unwrap_or_default().to_string_lossy());
            if path.is_dir() {
                self.read_folder(&path, &format!("{name}/"))?;
                continue;
            }
            let bytes = fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            let text = String::from_utf8_lossy(&bytes);
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("xml") => self.add_junit(&text),
                Some("lines") => self.add_lines(&name, text.lines()),
                Some("tap") => {
                    let is_result =
                        |line: &&str| ["ok ", "not ok ", "1..", "status "].iter().any(|start| line.starts_with(start));
                    self.add_lines(&name, text.lines().filter(is_result));
                }
                _ => {
                    self.by_name.insert(name, bytes);
                }
            }
        }
        Ok(())
    }

    fn add_lines<'t>(&mut self, name: &str, lines: impl Iterator<Item = &'t str>) {
        for (index, line) in lines.enumerate() {
            self.by_name.insert(format!("{name} {}", index + 1), line.into());
        }
    }

    fn add_junit(&mut self, text: &str) {
        for case in text.split("<testcase ").skip(1) {
            let case = case.split("</testcase>").next().unwrap_or_default();
            let attribute = |name: &str| case.split_once(&format!("{name}=\"")).and_then(|(_, rest)| rest.split('"').next());
            let outcome = ["failure", "error", "skipped"].into_iter().find(|tag| case.contains(&format!("<{tag}")));
            let seen = outcome.or(attribute("result")).unwrap_or("no result");
            let all = self.by_name.entry(attribute("name").unwrap_or_default().into()).or_default();
            all.extend_from_slice(seen.as_bytes());
            all.push(b'\n');
        }
    }

    /// Compares what the outputs said with what the originals said.
    pub(super) fn compare(&self, after: &Cases) -> Comparison {
        self.compare_by(after, |_, _, _| None)
    }

    /// The same, with further runs of the originals: where one differs from the first, only what is not a number counts.
    pub(super) fn compare_unsteady(&self, agains: &[Cases], after: &Cases) -> Comparison {
        self.compare_by(after, |name, before, after| {
            let said = agains.iter().map(|again| again.by_name.get(name).map(Vec::as_slice).unwrap_or_default());
            let said: Vec<&[u8]> = said.chain([before]).collect();
            let is_unsteady = said.iter().any(|&again| again != before);
            is_unsteady.then(|| said.iter().any(|&again| again == after || blurred(again) == blurred(after)))
        })
    }

    /// `settle` says of a case that differs whether it is unsteady, and if so, whether it is equal all the same.
    fn compare_by(&self, after: &Cases, settle: impl Fn(&str, &[u8], &[u8]) -> Option<bool>) -> Comparison {
        let mut comparison = Comparison::default();
        let names: std::collections::BTreeSet<&String> = self.by_name.keys().chain(after.by_name.keys()).collect();
        for name in names {
            let [before, after] = [self, after].map(|cases| cases.by_name.get(name).map(Vec::as_slice).unwrap_or_default());
            let settled = if before == after { Some(true) } else { settle(name, before, after) };
            comparison.cases += 1;
            comparison.unsteady += usize::from(before != after && settled.is_some());
            if settled == Some(true) {
                comparison.equal += 1;
            } else {
                comparison.different.push(format!("{name}: {}", difference(before, after)));
            }
        }
        comparison
    }
}

/// Text with each run of digits as one sign.
fn blurred(bytes: &[u8]) -> Vec<u8> {
    let mut kept: Vec<u8> = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        let byte = if byte.is_ascii_hexdigit() { b'#' } else { byte };
        if byte != b'#' || kept.last() != Some(&b'#') {
            kept.push(byte);
        }
    }
    kept
}

fn difference(before: &[u8], after: &[u8]) -> String {
    const SHOWN: usize = 160;
    let lines = |bytes: &[u8]| -> Vec<String> { String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect() };
    if before.contains(&0) || after.contains(&0) {
        let at = before.iter().zip(after).position(|(a, b)| a != b).unwrap_or(before.len().min(after.len()));
        return format!("{} bytes in place of {}, different from byte {at} on", after.len(), before.len());
    }
    let (before, after) = (lines(before), lines(after));
    let at = before.iter().zip(&after).position(|(a, b)| a != b).unwrap_or(before.len().min(after.len()));
    let show = |lines: &[String]| {
        lines.get(at).map_or("nothing".into(), |line| format!("{:?}", line.chars().take(SHOWN).collect::<String>()))
    };
    format!("{} in place of {}", show(&after), show(&before))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(pairs: &[(&str, &str)]) -> Cases {
        Cases { by_name: pairs.iter().map(|&(name, seen)| (name.to_owned(), seen.into())).collect() }
    }

    #[test]
    fn a_case_that_is_missing_or_says_something_else_is_different() {
        let before = cases(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let comparison = before.compare(&cases(&[("a", "1"), ("b", "x"), ("d", "4")]));
        assert_eq!((comparison.cases, comparison.equal), (4, 1));
        assert_eq!(
            comparison.different,
            ["b: \"x\" in place of \"2\"", "c: nothing in place of \"3\"", "d: \"4\" in place of nothing"]
        );
    }

    #[test]
    fn only_numbers_may_differ_and_only_where_the_original_is_unsteady() {
        let (before, again) = (cases(&[("a", "pid 17"), ("b", "at 17")]), cases(&[("a", "pid 20"), ("b", "at 17")]));
        let comparison = before.compare_unsteady(std::slice::from_ref(&again), &cases(&[("a", "pid 31"), ("b", "at 31")]));
        assert_eq!((comparison.equal, comparison.unsteady), (1, 1));
        assert_eq!(comparison.different, ["b: \"at 31\" in place of \"at 17\""]);
        assert_eq!(before.compare_unsteady(&[again], &cases(&[("a", "died"), ("b", "at 17")])).equal, 1);
    }

    #[test]
    fn test_cases_of_junit_have_a_name_and_an_outcome() {
        let mut read = Cases::default();
        read.add_junit(
            "<testsuite><testcase name=\"x\" result=\"completed\" /><testcase name=\"y\" result=\"completed\"><failure>…</failure></testcase>",
        );
        assert_eq!(read.by_name.get("x").map(Vec::as_slice), Some(&b"completed\n"[..]));
        assert_eq!(read.by_name.get("y").map(Vec::as_slice), Some(&b"failure\n"[..]));
    }
}
