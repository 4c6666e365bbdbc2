# Each file of perl's core tests, with the switches of its first line, from the folder where it expects to be.
cp -a "$SUITE/tree/." .
cd t
for file in base/*.t cmd/*.t comp/*.t io/*.t re/*.t uni/*.t mro/*.t op/*.t; do
    switches=$(head -n 1 "$file" | sed -n 's/^#!.*perl//p')
    name=$(echo "$file" | tr / -)
    timeout 120 /usr/bin/perl $switches "$file" > "$RESULTS/$name.tap" 2> /dev/null < /dev/null
    echo "status $?" >> "$RESULTS/$name.tap"
done
