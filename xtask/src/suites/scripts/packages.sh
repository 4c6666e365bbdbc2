# Each package is built, with debug information, at the same place for both sides; all files that the build made and the result of each test are cases.
# Run by the installed valgrind, tests want the debug file of the original loader: they are left out on both sides.
export FORCE_UNSAFE_CONFIGURE=1
mkdir bin && printf '#!/bin/sh\nexit 1\n' > bin/valgrind && chmod +x bin/valgrind
PATH=$PWD/bin:$PATH
for source in "$@"; do
    name=$(basename "$(dirname "$source")"); out=$RESULTS/$name; mkdir -p "$out"
    cp -a "$source" "$name"
    (
        cd "$name" || exit 1
        # So that nothing is made anew by tools that need not be there.
        find . -exec touch -r configure {} +
        ./configure --disable-dependency-tracking --disable-nls CFLAGS="-O2 -g"; echo "configure $?"
        make -j2; echo "make $?"
        make -k -j2 check; echo "check $?"
    ) > "$name.log" 2>&1 < /dev/null
    grep -E '^(configure|make|check) [0-9]+$' "$name.log" > "$out/ends"
    (cd "$name" && find . -type f \( -name '*.o' -o -name '*.a' -o -perm -111 \) | sort | xargs md5sum) > "$out/files"
    (cd "$name" && find . -name '*.trs' | sort | xargs -r grep -H ':test-result:') > "$out/tests"
    grep -E '^(PASS|FAIL|XFAIL|SKIP|ERROR|XPASS): ' "$name.log" | sort > "$out/results"
done
