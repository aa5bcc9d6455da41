"""Acceptance heads of SpecDec++: record what a pair of models does, train a head on it, judge it, measure what thresholds cost.

recording = record(RecordConfig("demo", out="recording"))                     # paceline.head.record
head = train([recording], TrainConfig(depth=1))                               # paceline.head.train
print_judgement(evaluate(head, [recording]))                                  # paceline.head.evaluate
calibrate(head, [recording], target, draft).save("head")                      # paceline.head.calibrate
"""
