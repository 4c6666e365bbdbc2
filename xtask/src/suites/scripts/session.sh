# Each line of the session is run by a bash of its own, all in the same folder.
mkdir session
cd session
number=0
while IFS= read -r line; do
    number=$((number + 1))
    record "$(printf %03d $number)" timeout 60 /usr/bin/bash -c "$line"
done < "$SUITE/commands"
