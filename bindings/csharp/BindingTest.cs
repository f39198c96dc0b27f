using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Threading;
using Cairn;

/// <summary>The main job through the C# binding, and everything that a careless host may do. Arguments: the sample model, small_model.py's.</summary>
static class BindingTest {
  const string Note = "Note: The code of Marlen Tovik is 4821.\nNote: The iron gate has the colour teal.";
  const string Question = "\nQ: What is the code of Marlen Tovik?\nA: ";
  static string path;
  static int checks;

  static void Check(bool claim, string text) {
    ++checks;
    if (!claim) throw new Exception(text);
  }

  static void Fails(Status code, Action action, string text) {
    try {
      action();
    } catch (CairnException error) {
      Check(error.Code == code, text + ": " + error.Code + ": " + error.Message);
      Check(error.Message.Length > 0, text + ": an error has a message");
      return;
    }
    Check(false, text + ": no exception");
  }

  static string Ask(Cairn.Stream stream, State state) {
    return string.Concat(stream.Generate(state, Question, 64, null, "\n"));
  }

  static void RemembersSavesRestoresAnswers(Model model, Cairn.Stream stream) {
    string folder = Path.Combine(Path.GetTempPath(), Path.GetRandomFileName());
    Directory.CreateDirectory(folder);
    string file = Path.Combine(folder, "agent.state");
    using (var state = new State(model)) using (var fromFile = new State(model)) using (var fromBytes = new State(model)) {
      stream.Read(state, Note);
      state.Save(file);
      fromFile.Restore(file);
      Check(fromFile.Position == state.Position, "the position is restored");
      byte[] bytes = state.ToBytes();
      fromBytes.Restore(bytes.AsSpan());
      Check(bytes.SequenceEqual(fromBytes.ToBytes()), "equal states give equal bytes");
      Check(Ask(stream, fromFile) == "4821", "a restored file answers");
      Check(Ask(stream, fromBytes) == "4821", "restored bytes answer");
    }
    Directory.Delete(folder, true);
  }

  static void ForksAndRewinds(Model model, Cairn.Stream stream) {
    using (var state = new State(model, 0, 1024)) {
      stream.Read(state, Note);
      byte[] before = state.ToBytes();
      long position = state.Position;
      using (var fork = state.Fork()) Ask(stream, fork);
      Check(before.SequenceEqual(state.ToBytes()), "a fork is independent");
      stream.Read(state, "\nCorrection: The code of Marlen Tovik is 7730.");
      Check(state.CanRewind(position), "the window reaches back");
      state.Rewind(position);
      Check(Ask(stream, state) == "4821", "rewinding unlearns");
    }
  }

  static void LendsLogits(Model model, Cairn.Stream stream) {
    using (var state = new State(model)) {
      stream.Read(state, Note);
      float[] last = state.LastLogits();
      Check(stream.WithLogits(0, lent => lent.Length) == model.VocabSize, "one logit a token");
      Check(stream.WithLogits(0, lent => lent.SequenceEqual(last.AsSpan())), "lent logits are the state's last logits");
      var sampler = new Sampler {Temperature = 1, TopK = 20, Seed = 7};
      Check(stream.Sample(sampler, 0, 3) == stream.Sample(sampler, 0, 3), "sampling is seeded");
    }
  }

  static void ReportsErrors(Device device, Model model, Cairn.Stream stream) {
    Fails(Status.NotFound, () => { new Model(device, "/nowhere/at/all.cairn"); }, "a model that is not there");
    Fails(Status.NotFound, () => { new Device("no such backend"); }, "a backend that is not there");
    using (var state = new State(model)) {
      Fails(Status.Format, () => { state.Restore(new byte[100].AsSpan()); }, "zeros are no snapshot");
      Fails(Status.InvalidArgument, () => { stream.Decode(new[] {state}, -5); }, "a token out of range");
      int[] tokens = model.Tokenize(Note);
      Fails(Status.InvalidArgument, () => { stream.Prefill(new[] {state}, new[] {tokens, tokens}); },
            "two arrays of tokens for one state");
      Fails(Status.InvalidArgument, () => { stream.Prefill(new[] {state, state}, new[] {tokens}); },
            "one array of tokens for two states");
      Check(state.Position == 0, "nothing was read");
      byte[] bytes = state.ToBytes();
      Fails(Status.LimitExceeded, () => { state.Restore(bytes.AsSpan(), bytes.Length - 1); }, "a snapshot over the quota");
      state.Restore(bytes.AsSpan(), bytes.Length);
    }
  }

  static void NamesAnyFile(Device device, Model model) {
    string folder = Path.Combine(Path.GetTempPath(), Path.GetRandomFileName());
    Directory.CreateDirectory(folder);
    string mountain = Path.Combine(folder, "\U0001F3D4.state");
    using (var state = new State(model)) {
      state.Save(mountain);
      Check(File.Exists(mountain), "a name beyond U+FFFF is written as UTF-8");
      state.Restore(mountain);
      foreach (Action call in new Action[] {() => state.Save(folder + "/cut\0off"), () => state.Restore(mountain + "\0"),
                   () => { new Device("cpu\0"); }, () => { new Model(device, path + "\0"); }}) {
        bool refused = false;
        try {
          call();
        } catch (ArgumentException) {
          refused = true;
        }
        Check(refused, "a name with a NUL is refused");
      }
    }
    Check(Directory.GetFiles(folder).Length == 1, "nothing else was written");
    Directory.Delete(folder, true);
  }

  static void GeneratesFromWhatWasRead(Model model, Cairn.Stream stream) {
    using (var state = new State(model)) using (var again = new State(model)) using (var other = new State(model)) {
      stream.Read(state, Note + Question);
      again.Restore(state.ToBytes().AsSpan());
      stream.Read(other, "The stream has other logits now.");
      foreach (State read in new[] {state, again}) {
        string said = string.Concat(stream.Generate(read, "", 64, null, "\n"));
        Check(said == "4821", "an empty prompt goes on from what was read: " + said);
      }
    }
  }

  static void GeneratesWholeCharacters(Device device, string smallModel) {
    string said = "";
    using (var model = new Model(device, smallModel)) using (var state = new State(model))
    using (var stream = new Cairn.Stream(model)) {
      foreach (string piece in stream.Generate(state, "abc", 5, null, "zz")) {
        Check(!char.IsHighSurrogate(piece[piece.Length - 1]), "a piece ends with a whole character");
        said += piece;
      }
    }
    Check(said == string.Concat(Enumerable.Repeat("\U0001F3D4", 5)), "all is said: " + said);
  }

  static void CallbacksMayThrowAndCancel(Model model, Cairn.Stream stream) {
    string text = new string('x', 4000);
    using (var state = new State(model)) {
      bool thrown = false;
      try {
        stream.Read(state, text, null, 0, (done, total) => { throw new InvalidOperationException("from the callback"); });
      } catch (InvalidOperationException error) {
        thrown = error.Message == "from the callback";
      }
      Check(thrown, "the caller gets the callback's exception");
      Fails(Status.Cancelled, () => { stream.Read(state, text, null, 0, (done, total) => false); }, "a cancel");
      state.Reset();
      var seen = new List<long>();
      stream.Read(state, text, Sparse.Adaptive, 0, (done, total) => { seen.Add(done); return true; });
      Check(seen.Last() == 4001, "progress ends with all tokens");
      string file = Path.GetTempFileName();
      var left = new List<long>();
      state.Save(file, (done, total) => { left.Add(total - done); return true; });
      Check(left.Count > 1 && left.Last() < left[0], "a save has progress");
      Fails(Status.Cancelled, () => { state.Restore(file, 0, (done, total) => false); }, "a cancelled restore");
      state.Restore(file, new FileInfo(file).Length, (done, total) => { left.Add(total - done); return true; });
      Check(left.Last() == 0, "progress of a restore ends with all bytes");
      File.Delete(file);
    }
  }

  static void DisposesTwiceAndParentsFirst() {
    var device = new Device("cpu", 0, 1);
    var model = new Model(device, path);
    var state = new State(model);
    device.Dispose();
    var stream = new Cairn.Stream(model);
    int[] tokens = model.Tokenize(Note);
    Check(model.ChatTemplate == "", "a model without a chat template has an empty one");
    model.Dispose();
    Fails(Status.InvalidHandle, () => { string text = model.ChatTemplate; }, "the template of a disposed model");
    stream.Prefill(new[] {state}, new[] {tokens});
    Check(state.Position == tokens.Length, "children work on when their parents are disposed");
    Fails(Status.InvalidHandle, () => { int size = model.VocabSize; }, "a disposed model");
    foreach (IDisposable thing in new IDisposable[] {state, stream, model, device, state, stream}) thing.Dispose();
    Fails(Status.InvalidHandle, () => { long position = state.Position; }, "a disposed state");
    try {
      state.Reset();
    } catch (CairnException error) {
      Check(error.Message == "the state was closed", error.Message);
    }
  }

  static void OnAnotherThread(Action action) {
    var thread = new Thread(() => action());
    thread.Start();
    thread.Join();
  }

  static void DisposesFromAnotherThreadDuringACall(Model model) {
    State state = new State(model), spare = new State(model);
    Cairn.Stream stream = new Cairn.Stream(model), second = new Cairn.Stream(model);
    int[] tokens = model.Tokenize(Note);
    stream.Prefill(new[] {state}, new[] {tokens}, null, 0, (done, total) => {
      OnAnotherThread(stream.Dispose);
      OnAnotherThread(state.Dispose);
      return true;
    });
    Fails(Status.InvalidHandle, () => { stream.Prefill(new[] {spare}, new[] {tokens}); }, "a disposed stream");
    Fails(Status.InvalidHandle, () => { long position = state.Position; }, "a disposed state");

    second.Prefill(new[] {spare}, new[] {tokens});
    float[] last = spare.LastLogits();
    bool equal = second.WithLogits(0, lent => {
      OnAnotherThread(() => {
        second.Dispose();
        using (var third = new Cairn.Stream(model)) using (var other = new State(model)) {
          third.Read(other, "Takes the memory that was given back.");
        }
      });
      return lent.SequenceEqual(last.AsSpan());
    });
    Check(equal, "logits stay while they are lent");
    Fails(Status.InvalidHandle, () => { second.WithLogits(0, lent => 0); }, "the logits of a disposed stream");
    spare.Dispose();
  }

  static void DisposesWhileOthersCall(Model model) {
    for (int round = 0; round < 200; ++round) {
      var state = new State(model);
      Exception caught = null;
      var caller = new Thread(() => {
        try {
          for (bool isNew = true; isNew;) {
            using (State fork = state.Fork()) isNew = fork.Position == 0;
          }
        } catch (Exception error) {
          caught = error;
        }
      });
      caller.Start();
      Thread.Sleep(round % 3);
      state.Dispose();
      caller.Join();
      var refused = caught as CairnException;
      Check(refused != null && refused.Code == Status.InvalidHandle, "the disposed state is refused: " + caught);
    }
  }

  static void CollectsNothingThatACallUses(Model model) {
    using (var state = new State(model)) {
      // Nothing but the call itself holds the stream.
      new Cairn.Stream(model).Read(state, Note, null, 0, (done, total) => {
        OnAnotherThread(() => {
          GC.Collect();
          GC.WaitForPendingFinalizers();
        });
        return true;
      });
      Check(state.Position > 0, "the text is read");
    }
  }

  static void CollectsInAnyOrder() {
    foreach (int[] order in new[] {new[] {0, 1, 2, 3}, new[] {3, 2, 1, 0}, new[] {1, 3, 0, 2}}) {
      var things = new object[4];
      things[0] = new Device("cpu", 0, 1);
      things[1] = new Model((Device)things[0], path);
      things[2] = new State((Model)things[1]);
      things[3] = new Cairn.Stream((Model)things[1]);
      foreach (int index in order) {
        things[index] = null;
        GC.Collect();
        GC.WaitForPendingFinalizers();
      }
    }
  }

  static int Main(string[] arguments) {
    path = arguments[0];
    using (var device = new Device("cpu", 0, 1)) using (var model = new Model(device, path))
    using (var stream = new Cairn.Stream(model)) {
      RemembersSavesRestoresAnswers(model, stream);
      ForksAndRewinds(model, stream);
      LendsLogits(model, stream);
      ReportsErrors(device, model, stream);
      NamesAnyFile(device, model);
      GeneratesFromWhatWasRead(model, stream);
      GeneratesWholeCharacters(device, arguments[1]);
      CallbacksMayThrowAndCancel(model, stream);
      DisposesFromAnotherThreadDuringACall(model);
      DisposesWhileOthersCall(model);
      CollectsNothingThatACallUses(model);
    }
    DisposesTwiceAndParentsFirst();
    CollectsInAnyOrder();
    Console.WriteLine(checks + " checks passed");
    return 0;
  }
}
