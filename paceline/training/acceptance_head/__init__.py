"""Acceptance heads of SpecDec++: record what a pair of models does, train a head on it, judge it,
measure what thresholds cost.

recording = record(RecordConfig("demo", out="recording"))                     #
paceline.training.acceptance_head.record head = train([recording], TrainConfig(depth=1))
                  # paceline.training.acceptance_head.train print_judgement(evaluate(head,
                  [recording]))                                  #
                  paceline.training.acceptance_head.evaluate
calibrate(head, [recording], target, draft).save("head")                      #
paceline.training.acceptance_head.calibrate
"""
