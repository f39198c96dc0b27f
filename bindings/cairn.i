// The raw layer of every language: everything is ignored, then allowed by name. See README.md.
%module(directors="1") cairn_module
%{
#include "cairn_raw.h"
%}
%include <stdint.i>
%include <std_string.i>

#if defined(SWIGJAVA)
%include "java/typemaps_java.i"
#elif defined(SWIGCSHARP)
%include "csharp/typemaps_csharp.i"
#elif defined(SWIGPYTHON)
%include "python/typemaps_python.i"
#endif

%rename("$ignore") "";
%rename("%s", regexmatch$name="^CAIRN_(STATUS|LOGITS|SPARSE)_") "";

%feature("director") Progress;
%rename("%s") Progress;
%rename("%s") Progress::~Progress;
%rename("%s") Progress::report;

%rename("%s") Raw;
%rename("%s") Raw::versionString;
%rename("%s") Raw::statusName;
%rename("%s") Raw::deviceOpen;
%rename("%s") Raw::deviceBackend;
%rename("%s") Raw::deviceName;
%rename("%s") Raw::deviceRelease;
%rename("%s") Raw::modelLoad;
%rename("%s") Raw::modelName;
%rename("%s") Raw::modelVocabSize;
%rename("%s") Raw::modelLayerCount;
%rename("%s") Raw::modelFirstToken;
%rename("%s") Raw::modelFreshStateBytes;
%rename("%s") Raw::modelTokenCount;
%rename("%s") Raw::modelTokenize;
%rename("%s") Raw::modelChatTemplateBytes;
%rename("%s") Raw::modelChatTemplate;
%rename("%s") Raw::modelIsStop;
%rename("%s") Raw::modelRelease;
%rename("%s") Raw::stateCreate;
%rename("%s") Raw::stateFork;
%rename("%s") Raw::stateReset;
%rename("%s") Raw::stateRewind;
%rename("%s") Raw::stateCanRewind;
%rename("%s") Raw::statePosition;
%rename("%s") Raw::stateOldestRewindPosition;
%rename("%s") Raw::stateBytesHeld;
%rename("%s") Raw::stateBytesShared;
%rename("%s") Raw::stateSave;
%rename("%s") Raw::stateRestore;
%rename("%s") Raw::stateSnapshotBytes;
%rename("%s") Raw::stateSaveTo;
%rename("%s") Raw::stateRestoreFrom;
%rename("%s") Raw::stateLastLogits;
%rename("%s") Raw::stateSample;
%rename("%s") Raw::stateRelease;
%rename("%s") Raw::streamCreate;
%rename("%s") Raw::streamPrefill;
%rename("%s") Raw::streamDecode;
%rename("%s") Raw::streamLogits;
%rename("%s") Raw::streamSample;
%rename("%s") Raw::streamRelease;
%rename("%s") Raw::decoderCreate;
%rename("%s") Raw::decoderPush;
%rename("%s") Raw::decoderFinish;
%rename("%s") Raw::decoderRelease;

#define CAIRN_API
%include "cairn/status.h"
%include "cairn/stream.h"
%include "cairn_raw.h"
