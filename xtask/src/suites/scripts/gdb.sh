# Breakpoints by name, backtraces from below several frames, and at a crash. Addresses are not printed; pieces of a function, which relift and
# gcc call .cold, count as the function, and as gdb knows main by its first piece only, it is asked to go on behind it. No symbol of a stripped
# program names its pieces: there only the frames count, not their names, if the functions are in pieces.
layout=$1
trace() {
    name=$1; shift
    timeout 120 gdb -nx -batch -ex 'set print address off' -ex 'set confirm off' -ex 'set backtrace past-main on' -ex 'set debuginfod enabled off' "$@" 2>&1 \
        | sed -E 's/0x[0-9a-f]+/ADDRESS/g; s/(\.cold(\.[0-9]+)?|\[cold\])( |>|\+|$)/\3/g; s/section \.text\.relift/section .text/; s/(Thread|LWP|process) [0-9A-Za-z]+( \(LWP [0-9]+\))?/\1/g; /^warning|debuginfod|no debugging symbols|^\[(New|Detach)/Id' > "$RESULTS/$name.lines"
}
for program in catcher catcher-fixed; do
    for place in thrower_level_0 thrower_level_7 catcher_step recover __cxa_throw; do
        trace "$program-$place" -ex 'set breakpoint pending on' -ex "break $place" -ex 'run 8' -ex backtrace -ex 'info frame' -ex up -ex 'finish' --args "$SUITE/built/$program" 8
    done
    trace "$program-catch" -ex 'catch throw' -ex 'run 8' -ex backtrace -ex continue -ex backtrace --args "$SUITE/built/$program" 8
    trace "$program-uncaught" -ex 'run uncaught' -ex backtrace --args "$SUITE/built/$program" uncaught
    trace "$program-symbols" -ex 'info functions thrower' -ex 'info symbol recover' -ex 'info line recover' "$SUITE/built/$program"
done
unnamed() {
    for name in "$@"; do sed -i -E '/^Run till exit|^[^ ]+ \(.*\)/d; s/^(#[0-9]+ ).*/\1a frame/' "$RESULTS/$name.lines"; done
}
trace perl -ex 'break Perl_pp_print' -ex 'run' -ex backtrace --args /usr/bin/perl -e 'sub f { print "x"; $_[0] ? f($_[0] - 1) : 1 } f(3)'
trace perl-deep -ex 'break Perl_pp_sort' -ex 'run' -ex backtrace -ex finish --args /usr/bin/perl -e 'eval { my @a = sort { $a <=> $b } map { $_ * 7 % 11 } 1 .. 10; print "@a" }'
trace python -ex 'break PyList_Sort' -ex 'run' -ex backtrace -ex finish --args /usr/bin/python3 -S -c 'print(sorted([3, 1, 2]))'
trace python-crash -ex run -ex backtrace --args /usr/bin/python3 -S -c 'import ctypes; ctypes.string_at(8)'
[ "$layout" = in-order ] || unnamed perl perl-deep
# At a fixed address, what moved leaves its symbol at the old entry.
unnamed python python-crash
