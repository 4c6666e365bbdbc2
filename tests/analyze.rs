//! `relift analyze` says what it can of pairs of memory references, why, and in which context.

mod support;

use std::path::{Path, PathBuf};

use support::{relift, relift_succeeds, repository, run};

fn fixture(folder: &Path, name: &str) -> PathBuf {
    let source = repository(&format!("fixtures/programs/{name}/{name}.c"));
    let program = folder.join(name);
    support::compile("gcc", &["-O2", "-fno-ipa-cp", "-fno-ipa-sra", "-fno-tree-vectorize"], &[&source], &program)
        .expect("it compiles");
    program
}

fn callers_frames(folder: &Path) -> PathBuf {
    fixture(folder, "callers_frames")
}

fn analyzed(program: &Path, folder: &Path, criterion: &str, function: &str) -> String {
    let mut command = relift();
    command.args(["analyze", "--criterion", criterion, "--func", function]).arg(program);
    relift_succeeds(&mut command, folder).stdout_text()
}

/// The part of an answer that is about calls from one function.
fn view<'t>(text: &'t str, caller: &str) -> &'t str {
    let start = text.find(&format!("{caller} before")).unwrap_or_else(|| panic!("{caller} is not among the callers:\n{text}"));
    let rest = &text[start..];
    &rest[..rest[1..].find("called from").map_or(rest.len(), |end| end + 1)]
}

#[test]
fn pointers_into_the_callers_frames_are_apart_only_where_it_is_known_who_calls() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let program = callers_frames(folder.path());
    let through_both = |line: &&str| line.contains("frame") && line.contains("writes") && line.contains("bytes apart");

    let shared = analyzed(&program, folder.path(), "insensitive", "align");
    assert!(shared.contains("may alias"), "without context some pair stays open:\n{shared}");
    let standard = analyzed(&program, folder.path(), "standard", "align");
    let hot = view(&standard, "hot");
    assert!(hot.contains("rdi is frame") && hot.contains("rsi is frame"), "what the hot caller passes is known:\n{hot}");
    assert!(!hot.contains("may alias"), "called from there every pair is decided:\n{hot}");
    assert!(hot.lines().any(|line| through_both(&line)), "the reason is printed:\n{hot}");
    let others = standard.replace(hot, "");
    assert!(others.contains("may alias"), "one of the other caller's calls may pass the same structure twice:\n{standard}");
}

#[test]
fn what_is_in_a_callers_frame_may_be_known_to_others_however_hidden_the_own_frame_is() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let program = fixture(folder.path(), "published_local");
    let answers = analyzed(&program, folder.path(), "standard", "walk");
    let in_loop: Vec<&str> =
        answers.lines().filter(|line| line.contains("frame + any") && line.contains("instruction")).collect();
    assert!(!in_loop.is_empty(), "the pointer into the caller's frame is known, the published one is not:\n{answers}");
    assert!(in_loop.iter().all(|line| line.contains("may alias")), "{in_loop:#?}");
}

#[test]
fn a_function_that_comes_back_only_because_another_of_its_cycle_does_comes_back() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let program = fixture(folder.path(), "mutual_recursion");
    for function in ["over_first", "over_second"] {
        let answers = analyzed(&program, folder.path(), "insensitive", function);
        let in_loop = answers.lines().filter(|line| line.contains("image + any")).count();
        assert!(in_loop > 0, "behind the call the loop goes on and the pointer moves:\n{answers}");
    }
}

#[test]
fn criteria_that_go_by_a_profile_ask_for_one() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let program = callers_frames(folder.path());
    let refused = run(relift().args(["analyze", "--criterion", "relevance"]).arg(&program), folder.path());
    assert_eq!(refused.end, support::End::Exit(1));
    assert!(refused.stderr_text().contains("profile"), "{}", refused.stderr_text());
}

#[test]
fn the_tables_compare_all_criteria_by_a_profile() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let (program, counting) = (callers_frames(folder.path()), folder.path().join("counting"));
    let profile = folder.path().join("profile.rlp");
    relift_succeeds(
        relift().arg("instrument").arg(&program).arg("-o").arg(&counting).arg("--profile").arg(&profile),
        folder.path(),
    );
    assert_eq!(run(&mut std::process::Command::new(&counting), folder.path()).end, support::End::Exit(42));
    let tables =
        relift_succeeds(relift().args(["analyze", "--tables", "--json"]).arg(&program).arg("-p").arg(&profile), folder.path());
    let tables: serde_json::Value = serde_json::from_str(&tables.stdout_text()).expect("it is JSON");
    let column = |name: &str| {
        let all = tables["columns"].as_array().expect("there are columns");
        all.iter().find(|c| c["criterion"] == name).unwrap_or_else(|| panic!("no column {name}: {tables}")).clone()
    };
    let (insensitive, standard, relevance) = (column("insensitive"), column("standard"), column("relevance 1.0"));
    assert_eq!(insensitive["pairs"]["beyond_insensitive"], 0);
    assert!(standard["pairs"]["beyond_insensitive"].as_u64() > Some(0), "{tables}");
    assert_eq!(relevance["executions"]["beyond_insensitive"], standard["executions"]["beyond_insensitive"], "{tables}");
    assert!(relevance["sites"].as_u64() < standard["sites"].as_u64(), "{tables}");
    assert_eq!(standard["clones"], 1, "one clone, for the hot caller: {tables}");
}
