// Names of the messages (wire/messages.proto) for headers that only pass them on: the generated header is
// 90,000 lines after preprocessing, so it is included where messages are made or read.
#pragma once

namespace allot::wire {

class AttentionSpec;
class Control;
class ControlEvent;
class ControlReply;
class Counters;
class CrossCheck;
class DatasetIdentity;
class Envelope;
class GenerationSpec;
class EpisodeResult;
class GivenUp;
class Hello;
class LearningCurve;
class Lease;
class ModelIdentity;
class PartialResult;
class PolicySpec;
class Preflight;
class QuestionOutcome;
class RunSpec;
class Score;
class Status;
class TaskSpec;
class WorkerStatus;
enum Ack_Verdict : int;
enum Control_Action : int;
enum LeaseKind : int;

}  // namespace allot::wire
