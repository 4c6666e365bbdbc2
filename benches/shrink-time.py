#!/usr/bin/env python3
"""User time of shrunk programs beside the originals': medians of alternating pairs.

    benches/shrink-time.py RELIFT DIRECTORY [--pairs 15] [--only NAME…]

Takes the machine's own programs, shrinks each into DIRECTORY and runs a fixed load with both in turns, the one that
goes first changing from pair to pair, on one processor. A line has the median user time of each, the ratio of the
medians, the quartiles of the ratios of the pairs, and the ratio of the shortest times, which a busy machine disturbs least. Programs that the machine doesn't have are named and left out.
"""
import argparse, os, re, resource, shutil, statistics, subprocess, sys, tempfile

PERL = r'my %h; for my $i (1..900000) { my $k = ($i * 7919) % 5003; $h{"k$k"} += $i; $s .= chr(65 + $i % 26) if $i % 3; } my $n = 0; $n += tr/A// for split /B/, $s; my @a = sort { $h{$a} <=> $h{$b} } keys %h; print "$n @a[0..3]\n";'
BASH = 'for ((i = 0; i < 80000; i++)); do s=$((s + i % 7)); t="$s-$i"; case $t in *99) u=${t%-*};; *) u=${t#*-};; esac; done; echo $s $u'
MAWK = 'BEGIN { for (i = 0; i < 1000000; i++) { k = (i * 7919) % 5003; a["k" k] += i; s += length(k "") } print s, a["k77"] }'
SQL = ('create table t(a integer primary key, b text, c real); with recursive n(i) as (select 1 union all select i + 1 from n where i < 300000) '
       'insert into t select i, printf("%d-%s", i * 7919 % 5003, hex(i)), i / 3.0 from n; create index tb on t(b); '
       'select count(*), sum(length(b)), avg(c) from t where b like "1%7%"; select b, count(*) from t group by substr(b, 1, 3) order by 2 desc limit 5;')
PYTHON = 'import json\nd = {}\nfor i in range(700000):\n    d[i % 5003] = d.get(i % 5003, 0) + i * 3 % 7\ns = json.dumps([{"k": k, "v": str(v)} for k, v in d.items()] * 6)\nprint(len(json.loads(s)), sum(x * x % 11 for x in range(900000)))'


def loads(data, repository, source):
    """Name of the line, program, arguments, whether standard input is the data."""
    return [
        ("perl", "perl", ["-e", PERL], None),
        ("bash", "bash", ["-c", BASH], None),
        ("mawk", "mawk", [MAWK], None),
        ("sqlite3", "sqlite3", [":memory:", SQL], None),
        ("python3", "/usr/bin/python3", ["-c", PYTHON], None),
        ("sort", "sort", ["--parallel=1", data], None),
        ("grep", "grep", ["-cE", "([0-9a-f])\\1\\1.*\\1", data], None),
        ("sed", "sed", ["-n", r"s/\([a-z]\)\([0-9]\)/\2\1/g;/q.*q.*7/p", data], None),
        ("gzip", "gzip", ["-9c"], data),
        ("bzip2", "bzip2", ["-c"], data),
        ("xz", "xz", ["-4c", "-T1"], data),
        ("zstd", "zstd", ["-12c", "--single-thread"], data),
        ("git", "git", ["-C", repository, "log", "--stat", "--oneline", "-400"], None),
        ("cc1", "cc1", ["-quiet", "-O2", source, "-o", "/dev/null"], None),
        ("as", "as", [source + ".s", "-o", "/dev/null"], None),
    ]


def find(program):
    if program == "cc1":
        return subprocess.run(["gcc", "-print-prog-name=cc1"], capture_output=True, text=True).stdout.strip()
    return os.path.realpath(shutil.which(program) or program)


def user_time(command, stdin):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    # Not the null device, for which grep stops at the first match.
    with open(stdin or os.devnull, "rb") as given, tempfile.TemporaryFile() as taken:
        status = subprocess.run(command, stdin=given, stdout=taken, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PERL_HASH_SEED": "0", "PERL_PERTURB_KEYS": "0", "PYTHONHASHSEED": "0"})
    if status.returncode not in (0, 1):
        sys.exit(f"{command[0]}: exit status {status.returncode}")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def prepare(directory):
    """A text, a C file and its assembly, the same each time."""
    data, source = os.path.join(directory, "text"), os.path.join(directory, "source.c")
    state, lines = 1, []
    for _ in range(220_000):
        words = []
        for _ in range(5):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            words.append(format(state >> 40, "x"))
        lines.append(" ".join(words))
    with open(data, "w") as text:
        text.write("\n".join(lines))
    with open(source, "w") as text:
        for i in range(260):
            text.write(f"int f{i}(int *a, int n) {{ int s = {i}; for (int i = 0; i < n; i++) {{ if (a[i] > s) s += a[i] * {i + 3}; else switch (a[i] & 7) {{ case 1: s ^= n; break; case 3: s -= i; break; case 5: a[i] = s / (i + 1); }} }} return s; }}\n")
    subprocess.run(["gcc", "-O2", "-S", source, "-o", source + ".s"], check=True)
    with open(source + ".s") as text:
        once = text.read()
    with open(source + ".s", "w") as text:
        text.writelines(re.sub(r"\b(f\d+|L[A-Z]*\d+)\b", rf"\1_{i}", once) for i in range(40))
    return data, source


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("relift")
    arguments.add_argument("directory")
    arguments.add_argument("--pairs", type=int, default=15)
    arguments.add_argument("--only", nargs="*", default=[])
    arguments.add_argument("--skip", default="", help="techniques of shrink to leave out")
    arguments.add_argument("--repository", default=os.getcwd(), help="what git's load reads")
    given = arguments.parse_args()
    os.makedirs(given.directory, exist_ok=True)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    data, source = prepare(given.directory)
    ratios, shortest = [], []
    print("| program | user time | shrunk | ratio | quartiles of the pairs | of the shortest |\n| --- | ---: | ---: | ---: | --- | ---: |")
    for name, program, args, stdin in loads(data, given.repository, source):
        if given.only and name not in given.only:
            continue
        original = find(program)
        if not os.path.exists(original):
            print(f"| {name} | not on this machine | | | | |")
            continue
        # Both are copies in the same folder with names of one length, so that what the loader does is the same.
        first, second = (os.path.join(given.directory, f"{name}.{kind}") for kind in ("old", "new"))
        shutil.copy(original, first)
        skip = ["--skip", given.skip] if given.skip else []
        subprocess.run([given.relift, "shrink", original, "-o", second, *skip], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times = {first: [], second: []}
        for warm in (first, second):
            user_time([warm, *args], stdin)
        for pair in range(given.pairs):
            for path in (first, second) if pair % 2 else (second, first):
                times[path].append(user_time([path, *args], stdin))
        of_pairs = [new / old for old, new in zip(times[first], times[second])]
        low, _, high = statistics.quantiles(of_pairs, n=4)
        old, new = statistics.median(times[first]), statistics.median(times[second])
        ratios.append(new / old)
        shortest.append(min(times[second]) / min(times[first]))
        print(f"| {name} | {old:.3f} s | {new:.3f} s | {new / old:.3f} | {low:.3f}–{high:.3f} | {shortest[-1]:.3f} |", flush=True)
    if ratios:
        print(f"| geometric mean | | | {statistics.geometric_mean(ratios):.3f} | | {statistics.geometric_mean(shortest):.3f} |")


if __name__ == "__main__":
    main()
