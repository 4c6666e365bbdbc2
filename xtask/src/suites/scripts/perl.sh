# Each file of perl's core tests, with the switches of its first line, from the folder where it expects to be.
# The order of a hash's keys is random by default, and some tests name what they try in that order; files are named by the process's number.
export PERL_HASH_SEED=0 PERL_PERTURB_KEYS=0
cp -a "$SUITE/tree/." .
cd t
# Some tests run it by this name; what happens first if it is not there is different from time to time.
ln -sf /usr/bin/perl perl
# Those left out try all of Unicode, or the same again in a thread, for minutes.
for file in $(ls base/*.t cmd/*.t comp/*.t io/*.t re/*.t uni/*.t mro/*.t op/*.t | grep -vE 're/(uniprops|fold_grind|.*_thr|speed|charset)|op/(lc|sprintf2|pack)\.t|uni/(lower|upper|title)'); do
    switches=$(head -n 1 "$file" | sed -n 's/^#!.*perl//p')
    name=$(echo "$file" | tr / -)
    timeout 600 /usr/bin/perl $switches "$file" > seen 2> /dev/null < /dev/null
    echo "status $?" >> seen
    sed -E 's/0x[0-9a-f]{6,}/ADDRESS/g; s/tmp_[A-Z]+/tmp_NAME/g' seen > "$RESULTS/$name.tap"
done
