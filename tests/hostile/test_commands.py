"""Test every command with bad options, values, paths and devices.

Each gives one error line and leaves no files behind.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.hostile.shell import listing, run

pytestmark = pytest.mark.hostile

# Words of the command line -> regular expression for the error line. @NAME is a valid file.
REFUSED = r"""
nonsense                                                -> Did you mean|nonsense
generat hi                                              -> generate
-x                                                      -> -x
--                                                      -> .
'' hi                                                   -> .
generate demo                                           -> no prompt
generate --foo                                          -> Unknown option: --foo
generate demo hi --temperature                          -> temperature
generate demo hi --drafter                              -> drafter
generate demo hi -n                                     -> .
generate demo hi -n -3                                  -> -n: got -3
generate demo hi -n 1.5                                 -> 1.5
generate demo hi -n 1e3                                 -> 1e3
generate demo hi -n many                                -> many
generate demo hi -n ''                                  -> got ''
generate demo hi --temperature -1                       -> --temperature: got -1
generate demo hi --temperature nan                      -> --temperature: got nan
generate demo hi --temperature inf                      -> --temperature: got inf
generate demo hi --temperature hot                      -> hot
generate demo hi --top-k -1                             -> --top-k: got -1
generate demo hi --top-k 2.5                            -> 2.5
generate demo hi --top-p 0                              -> --top-p: got 0
generate demo hi --top-p 1.1                            -> --top-p: got 1.1
generate demo hi --top-p nan                            -> --top-p: got nan
generate demo hi --min-p 2                              -> --min-p: got 2
generate demo hi --min-p -0.1                           -> --min-p: got -0.1
generate demo hi --repetition-penalty 0                 -> --repetition-penalty: got 0
generate demo hi --repetition-penalty -1                -> --repetition-penalty: got -1
generate demo hi --seed x                               -> x
generate demo hi --seed 0.5                             -> 0.5
generate demo hi --stop ''                              -> stop
generate demo hi --stop                                 -> stop
generate demo hi --stop -x -> written --stop=VALUE
generate demo hi --ignore-eos=perhaps                   -> perhaps
generate demo hi --no-ignore-eos                        -> no-ignore-eos
generate demo hi --speculation none                     -> speculation
generate demo hi --max-nodes 3                          -> max-nodes
generate demo hi --max-length 1                         -> --max-length: got 1
generate demo hi --max-length -5                        -> --max-length: got -5
generate demo hi --max-length x                         -> x
generate demo 'a much longer prompt than that' --max-length 3 -> longer|tokens
generate demo hi --drafter ''                           -> drafter
generate demo hi --drafter nothing                      -> nothing
generate demo hi --drafter nonne                        -> Did you mean 'none'
generate demo hi --drafter prompt_lookup:length         -> key=value
generate demo hi --drafter prompt_lookup:max_draft_tokens= -> max_draft_tokens
generate demo hi --drafter prompt_lookup:max_draft_tokens=x -> max_draft_tokens
generate demo hi --drafter prompt_lookup:max_draft_tokens=0 -> max_draft_tokens
generate demo hi --drafter prompt_lookup:max_draft_tokens=1.5 -> max_draft_tokens
generate demo hi --drafter prompt_lookup:max_draft_token=3 -> Did you mean 'max_draft_tokens'
generate demo hi --drafter prompt_lookup:max_draft_tokens=3,max_draft_tokens=4 -> twice
generate demo hi --drafter prompt_lookup:budget=maybe   -> budget
generate demo hi --drafter prompt_lookup:max_ngram=1,min_ngram=2 -> max_ngram
generate demo hi --drafter jacobi:block=0               -> block
generate demo hi --drafter lookahead:ngram=1            -> ngram
generate demo hi --drafter lookahead:window=0           -> window
generate demo hi --drafter pia:max_nodes=-1             -> max_nodes
generate demo hi --drafter rest                         -> datastore
generate demo hi --drafter rest:datastore=              -> datastore
generate demo hi --drafter rest:datastore=/missing      -> /missing
generate demo hi --drafter sssd:datastore=@tiny         -> no store|not a store|manifest
generate demo hi --drafter sssd:fusion=cold             -> fusion
generate demo hi --drafter sssd:max_nodes=0             -> max_nodes
generate demo hi --drafter sssd:update_datastore=true   -> datastore
generate demo hi --drafter sssd:update_datastore=true,datastore=demo -> datastore
generate demo hi --drafter "sssd:datastore='x"          -> quote
generate demo hi --drafter draft_model:max_draft_tokens=0 -> max_draft_tokens
generate demo hi --drafter draft_model:verification=hope -> verification
generate demo hi --drafter specdec_pp:head=/missing     -> /missing
generate demo hi --drafter specdec_pp:head=@store       -> .
generate demo hi --drafter ouroboros:gamma=0            -> gamma
generate demo hi --drafter ouroboros:pool_file=@answers.jsonl -> pool
generate demo hi --drafter ouroboros:pool_file=/missing/x/y -> missing
generate demo hi --drafter token_recycling:tree=large   -> tree
generate demo hi --drafter os:path                      -> os:path
generate demo hi --drafter os:getcwd                    -> os:getcwd
generate demo hi --drafter no.module:Class              -> no.module
generate demo hi --drafter none:x=1                     -> no option
generate demo hi --drafter none:auto                    -> .
generate /missing hi                                    -> no such folder
generate ./missing.gguf hi                              -> no such file
generate '' hi                                          -> no such
generate @prompts.jsonl hi                              -> prompts.jsonl
generate @store hi                                      -> store
generate /dev/null hi                                   -> /dev/null
generate some/model-that-is-not-here hi                 -> some/model-that-is-not-here
generate @tiny hi                                       -> tokenizer
generate @tiny hi --chat                                -> tokenizer
generate demo hi -d /missing --drafter draft_model      -> /missing
generate @target hi --drafter draft_model               -> draft model
generate @target hi -d @tiny --drafter draft_model      -> vocabulary
generate @target hi --drafter sssd:datastore=@store --tokenizer @tiny.gguf    -> tokenizer
generate demo hi --tokenizer /missing                   -> /missing
generate demo hi --tokenizer @tiny                      -> tokenizer
generate demo hi --tokenizer ''                         -> tokenizer
generate demo hi --device cuda                          -> --device: got 'cuda'
generate demo hi --device cuda:7                        -> --device: got 'cuda:7'
generate demo hi --device mps                           -> --device: got 'mps'
generate demo hi --device meta                          -> --device: got 'meta'
generate demo hi --device ''                            -> device
generate demo hi --device gpu                           -> --device: got 'gpu'
generate demo hi --device cpu:x                         -> device
generate demo hi --dtype float8                         -> float8
generate demo hi --dtype int8                           -> int8
generate demo hi --dtype ''                             -> dtype
generate demo hi --threads 0                            -> --threads: got 0
generate demo hi --threads 100000                       -> --threads: got 100000
generate demo hi --threads two                          -> two
generate demo hi --batch-invariant maybe                -> maybe
generate demo hi --file /missing                        -> /missing
generate demo hi --file @store                          -> Is a directory
generate demo hi --file @prompts.jsonl --output /missing/x -> /missing
generate demo hi --output @store                        -> folder
generate demo hi --output ''                            -> .
generate demo --file @tiny.gguf                         -> tiny.gguf:1
generate demo --file @answers.jsonl                     -> answers.jsonl:1
generate demo --file /dev/null                          -> /dev/null: there are no prompts
generate demo hi --lookahead-parallel                   -> torchrun
generate demo hi --process-timeout 0                    -> --process-timeout
chat --foo                                              -> Unknown option
chat demo hello                                         -> hello
chat -n -1                                              -> -n
chat --drafter nothing                                  -> nothing
chat @tiny                                              -> template|tokenizer
chat --ignore-eos                                       -> ignore-eos
bench --foo                                             -> Unknown option
bench --drafter nothing                                 -> nothing
bench --drafter none,none                               -> twice
bench --drafter ','                                     -> .
bench --baseline hope                                   -> hope
bench --baseline transformers:prompt_lookup=0           -> prompt_lookup=0
bench --baseline none --drafter ''                      -> .
bench --batch 0                                         -> --batch: got 0
bench --limit -1                                        -> --limit: got -1
bench --every 0                                         -> --every: got 0
bench --repeats 0                                       -> --repeats: got 0
bench --warmup -1                                       -> --warmup: got -1
bench --max-seconds -1                                  -> --max-seconds: got -1
bench --max-seconds nan                                 -> --max-seconds: got nan
bench --cost-scale big                                  -> cost scale
bench --cost-scale 1x1                                  -> cost
bench --stop x                                          -> stop
bench --prompts /missing                                -> /missing
bench --prompts @store                                  -> directory
bench --prompts @tiny.gguf                              -> tiny.gguf
bench --prompts @answers.jsonl                          -> answers.jsonl
bench --prompts /dev/null                               -> no prompts
bench --json /missing/x.json                            -> /missing
bench --json @store                                     -> folder
bench --json - --markdown -                             -> only one result
bench --png /dev/full --limit 1 -n 2 --drafter none --baseline none -> No space left
bench --json /dev/full --limit 1 -n 2 --drafter none --baseline none -> No space left
bench @target --drafter specdec_pp                      -> draft model
bench -n 100000 --limit 1 --drafter none                -> context
paper nothing                                           -> nothing
paper lookahead --batch 0                               -> batch
paper sssd --datastore /missing                         -> /missing|datastore
record --out /missing/x/y.jsonl --limit 0 -n -1         -> -n
record --out @store --limit 1 -n 2                      -> store
record --out @prompts.jsonl --limit 1 -n 2              -> prompts.jsonl
record --out @answers.jsonl --limit 1 -n 2              -> answers.jsonl
record --batch 0                                        -> --batch: got 0
record --top 65 --limit 1 -n 2                          -> --top: got 65
record --top -1 --limit 1 -n 2                          -> --top: got -1
record --limit 1 -n 1000000                             -> -n: got 1000000
record --prompts /missing                               -> /missing
record @tiny --limit 1 -n 2                             -> tokenizer
replay                                                  -> TRACE
replay /missing                                         -> /missing
replay @store                                           -> .
replay @tiny.gguf                                       -> tiny.gguf
replay @prompts.jsonl                                   -> prompts.jsonl
replay @answers.jsonl --nodes 0                         -> nodes
replay @answers.jsonl --nodes x                         -> nodes
replay @answers.jsonl --nodes ''                        -> nodes
replay @answers.jsonl --batch 0                         -> batch
replay @answers.jsonl --limit 0                         -> limit
replay @answers.jsonl --drafters jacobi                 -> jacobi
replay @answers.jsonl --drafters lookahead              -> lookahead
replay @answers.jsonl --drafters draft_model            -> draft_model
replay @answers.jsonl --drafters nothing                -> nothing
replay @answers.jsonl --drafters rest                   -> datastore
replay @answers.jsonl --drafters sssd --datastore /missing -> /missing
replay @answers.jsonl --tokenizer /missing              -> /missing
replay @answers.jsonl --tokenizer @tiny.gguf --drafters sssd --datastore @store -> tokenizer
datastore nothing                                       -> nothing
datastore build                                         -> PATH|INPUT|tokenizer
datastore build x                                       -> INPUT|tokenizer
datastore build x @documents.txt                        -> tokenizer
datastore build x @documents.txt --tokenizer /missing   -> /missing
datastore build x @documents.txt --tokenizer @store     -> tokenizer
datastore build x /missing.txt --tokenizer demo         -> /missing.txt
datastore build x @tiny.gguf --tokenizer demo           -> tiny.gguf
datastore build x @documents.txt --tokenizer demo --vocab-size 10 -> vocab|below|10
datastore build x @documents.txt --tokenizer demo --vocab-size -1 -> --vocab-size
datastore build x @documents.txt --tokenizer demo --memory 0 -> memory
datastore build x @documents.txt --tokenizer demo --memory nan -> memory
datastore build x @documents.txt --tokenizer demo --workers -1 -> workers
datastore build x @documents.txt --tokenizer demo --shard-tokens -1 -> --shard-tokens
datastore build x datasets:nothing --tokenizer demo     -> datasets
datastore build x datasets: --tokenizer demo            -> datasets
datastore build @documents.txt @documents.txt --tokenizer demo -> documents.txt
datastore build demo @documents.txt --tokenizer demo    -> demo
datastore build /proc/x @documents.txt --tokenizer demo -> /proc/x
datastore build '' @documents.txt --tokenizer demo      -> .
datastore add /missing @documents.txt --tokenizer demo  -> /missing
datastore add @store @documents.txt --tokenizer @tiny.gguf -> tokenizer
datastore info /missing                                 -> /missing
datastore info @tiny                                    -> tiny
datastore info @documents.txt                           -> documents.txt
datastore info ''                                       -> .
datastore verify /missing                               -> /missing
datastore verify @tiny                                  -> tiny
head record --batch 0                                   -> batch
head record --keep 1                                    -> keep
head record --keep nan                                  -> keep
head record --mixtures 0                                -> mixtures
head record --out @documents.txt --limit 1 -n 2         -> documents.txt
head record @target --limit 1 -n 2                      -> draft
head record --answers /missing                          -> /missing
head record --answers @prompts.jsonl                    -> prompts.jsonl
head train                                              -> RECORDING|out
head train /missing --out x                             -> /missing
head train @store --out y                               -> store
head train @recording --out @documents.txt              -> documents.txt
head train @recording --out x --lr 0                    -> lr
head train @recording --out x --lr nan                  -> lr
head train @recording --out x --lr 1e30 --epochs 2      -> lr|finite
head train @recording --out x --depth 9                 -> depth
head train @recording --out x --epochs 0                -> epochs
head train @recording --out x --batch 0                 -> batch
head train @recording --out x --dev 0.9                 -> dev
head train @recording --out x --weight-decay nan        -> --weight-decay
head evaluate                                           -> HEAD|RECORDING
head evaluate /missing @recording                       -> .
head evaluate @head /missing                            -> /missing
head evaluate @head @recording -d @tiny                 -> .
head calibrate demo @head /missing                      -> /missing
head calibrate demo @head @recording --limit -1         -> limit
drafters extra                                          -> takes no argument
cache clear everything                                  -> everything
verify --drafter nothing                                -> nothing
verify --batch 0                                        -> --batch: got
verify --drafters none                                  -> with itself
verify --json /missing/x                                -> /missing
verify --drafter rest:datastore=/missing --limit 1 -n 2 -> /missing
doctor /missing                                         -> /missing
doctor @store                                           -> store
doctor --threads 0                                      -> threads
doctor demo --device cuda                               -> cuda
demo --output @documents.txt                            -> documents.txt
demo --output /proc/x                                   -> /proc/x
demo --threads -1                                       -> threads
demo --small=maybe                                      -> maybe
"""


def _cases(table: str) -> list[tuple[str, str]]:
    rows = (line.rpartition("->") for line in table.strip("\n").splitlines())
    return [(words.strip(), expected.strip()) for words, _, expected in rows]


def _words(text: str, valid_files: Path) -> list[str]:
    return [word.replace("@", f"{valid_files}/", 1) for word in shlex.split(text)]


@pytest.mark.parametrize(("words", "expected"), _cases(REFUSED))
def test_bad_command_lines_are_refused(
    words: str, expected: str, valid_files: Path, tmp_path: Path
) -> None:
    before = listing(valid_files)
    ended = run(_words(words, valid_files), tmp_path)
    ended.check_refused(expected)
    assert (listing(valid_files), listing(tmp_path)) == (before, {})
