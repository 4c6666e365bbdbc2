//! An instrumented library counts all that it executes: loaded, unloaded and loaded again, in a child process, in several threads; whatever way it has of running
//! something when it is loaded.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{End, relift, relift_succeeds, run};

const LIBRARY: &str = r#"
static int ready;
__attribute__((constructor)) static void begin(void) { ready += 40; }
__attribute__((noinline, noclone)) unsigned counted(unsigned x) {
    if (x % 3 == 0) return x / 3 + 7;
    return x % 2 ? x * 5 + 1 : x / 2;
}
unsigned pass(void) {
    unsigned value = 27;
    for (int i = 0; i < 1000; i++) value = counted(value);
    return value % 1000 + ready;
}
"#;

/// With the constructor left out, and everything that the compiler adds too, nothing runs when it is loaded.
const SILENT_LIBRARY: &str = "unsigned pass(void) { return 1; }\n";

/// Loads the library so often as the first argument says and makes a pass each time; then one in a child, and four in threads, if asked for.
const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static unsigned (*pass)(void);
static void *in_thread(void *unused) { (void)unused; return (void *)(unsigned long)pass(); }
static void *load(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); exit(1); }
    pass = (unsigned (*)(void))dlsym(library, "pass");
    return library;
}
int main(int argc, char **argv) {
    for (int i = 0; i < atoi(argv[2]); i++) {
        void *library = load(argv[1]);
        printf("%u\n", pass());
        if (dlclose(library)) return 2;
    }
    if (argc < 4) return 0;
    load(argv[1]);
    fflush(stdout);
    if (fork() == 0) { printf("%u\n", pass()); fflush(stdout); _exit(0); }
    wait(NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, in_thread, NULL);
    for (int i = 0; i < 4; i++) { void *value; pthread_join(threads[i], &value); printf("%lu\n", (unsigned long)value); }
    fflush(stdout);
    kill(getpid(), 9);
}
"#;

struct Case {
    folder: tempfile::TempDir,
    library: PathBuf,
    program: PathBuf,
}

impl Case {
    fn new(text: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder can be made");
        let flags: Vec<&str> = ["-O2", "-fPIC", "-shared"].iter().chain(flags).copied().collect();
        let library = support::compile_text(text, &flags, folder.path(), "library.so");
        let text = PROGRAM.replace("#include <stdio.h>", "#include <signal.h>\n#include <stdio.h>");
        let program = support::compile_text(&text, &["-O1", "-pthread", "-ldl"], folder.path(), "program");
        Case { folder, library, program }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn instrument(&self, profile: &Path) -> PathBuf {
        let output = self.at("counting.so");
        let mut instrument = relift();
        instrument.arg("instrument").arg(&self.library).arg("-o").arg(&output).arg("--profile").arg(profile);
        relift_succeeds(&mut instrument, self.folder.path());
        output
    }

    fn run(&self, library: &Path, arguments: &[&str]) -> (End, String) {
        let ran = run(Command::new(&self.program).arg(library).args(arguments), self.folder.path());
        assert_eq!(ran.stderr_text(), "");
        (ran.end, ran.stdout_text())
    }

    /// What was counted in the function `counted`.
    fn counted(&self, profile: &Path) -> u64 {
        let said = relift_succeeds(relift().args(["profile", "show", "--json", "--top", "100"]).arg(profile), self.folder.path());
        let shown: serde_json::Value = serde_json::from_slice(&said.stdout).expect("it prints JSON");
        let functions = shown["functions"].as_array().expect("it lists functions");
        let found = functions.iter().find(|f| f["name"] == "counted").unwrap_or_else(|| panic!("no such function in {shown}"));
        found["counted"].as_u64().expect("counts are numbers")
    }
}

/// Of all passes that were made, nothing is lost, and the profile is one to optimize by.
fn counts_everything(case: &Case) {
    let (one, all) = (case.at("one.rlp"), case.at("all.rlp"));
    case.run(&case.instrument(&one), &["1"]);
    let counting = case.instrument(&all);
    assert_eq!(case.run(&counting, &["2"]), case.run(&case.library, &["2"]));
    assert_eq!(case.run(&counting, &["1", "and in a child and in threads"]), case.run(&case.library, &["1", "so"]));
    // Twice and once loaded; in a child; in four threads of a process that is killed.
    assert_eq!(case.counted(&all), (2 + 1 + 1 + 4) * case.counted(&one));
    let optimized = case.at("optimized.so");
    let mut optimize = relift();
    optimize.arg("optimize").arg(&case.library).arg("-o").arg(&optimized).arg("-p").arg(&all);
    relift_succeeds(&mut optimize, case.folder.path());
    assert_eq!(case.run(&optimized, &["2", "and"]), case.run(&case.library, &["2", "and"]));
}

#[test]
fn a_library_with_an_initializer_counts_from_there() {
    counts_everything(&Case::new(LIBRARY, &["-Wl,-soname,library.so.1"]));
}

#[test]
fn a_library_with_an_array_of_initializers_only_counts_from_its_first() {
    for relocations in ["-Wl,-z,nopack-relative-relocs", "-Wl,-z,pack-relative-relocs"] {
        let case = Case::new(LIBRARY, &["-nostartfiles", relocations]);
        counts_everything(&case);
    }
}

#[test]
fn a_library_that_runs_nothing_when_it_is_loaded_is_refused() {
    let case = Case::new(SILENT_LIBRARY, &["-nostartfiles"]);
    let output = case.at("counting.so");
    let mut instrument = relift();
    instrument.arg("instrument").arg(&case.library).arg("-o").arg(&output).arg("--profile").arg(case.at("profile"));
    let refused = run(&mut instrument, case.folder.path());
    assert_eq!(refused.end, End::Exit(1));
    assert!(support::only_line(&refused).contains("DT_INIT"), "{refused:?}");
    assert!(!output.exists());
}
